"""Finds the `config.json` of a run's model, on this machine's disks and nowhere else.

A hub name is looked up in the hub's cache by the cache's own layout (`models--OWNER--NAME/snapshots/REVISION`;
huggingface_hub, docs/source/en/guides/manage-cache.md), so that neither huggingface_hub nor a network is needed.
"""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import orjson

from echo_queue.config import Config, Model, ModelInit
from echo_queue.errors import ConfigError, Problem
from echo_queue.models.hub import reachable
from echo_queue.models.shape import ModelShape, shape_of

FILE = "config.json"
WHERE = "model.base"


def model_shape(config: Config, file: Path | None = None, environ: Mapping[str, str] = os.environ) -> ModelShape:
    """Returns the shape of the run's model: that of `file`, a model's config.json, if it is given.

    Raises `ConfigError` if the model is not on this machine, or is of a type that no estimate is made for.
    """
    if file is None and config.model.base == "init":
        return _init_shape(config.model.init)
    path = file or find(config, environ)
    if path is None:
        what = f"{config.model.base} is neither a folder with a {FILE} nor in the hub's cache on this machine"
        revision = "" if config.model.revision == "main" else f" --revision {config.model.revision}"
        fix = f"run `hf download {config.model.base} {FILE}{revision}`, or name a model's {FILE} with --model-config"
        raise ConfigError(Problem(WHERE, what, fix))
    return shape_of(_read(path), str(path))


def document(config: Config, environ: Mapping[str, str] = os.environ) -> dict[str, Any] | None:
    """Returns the content of the config.json of the run's model; None if the model is not on this machine.

    Raises `ConfigError` for a file that is no JSON object.
    """
    path = None if config.model.base == "init" else find(config, environ)
    return None if path is None else _read(path)


def find(config: Config, environ: Mapping[str, str] = os.environ) -> Path | None:
    """Returns the config.json of a folder or of a hub model that was downloaded before.

    Returns None if there is none here that this user can reach.
    """
    return next((path for path in _candidates(config.model, environ) if reachable(path) and path.is_file()), None)


def _candidates(model: Model, environ: Mapping[str, str]) -> Iterator[Path]:
    yield Path(model.base) / FILE
    cached = _hub_cache(environ) / f"models--{model.base.replace('/', '--')}"
    named = cached / "refs" / model.revision
    commit = named.read_text(encoding="utf-8").strip() if reachable(named) and named.is_file() else model.revision
    yield cached / "snapshots" / commit / FILE


def _hub_cache(environ: Mapping[str, str]) -> Path:
    home = environ.get("HF_HOME") or Path(environ.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface"
    return Path(environ.get("HF_HUB_CACHE") or Path(home) / "hub").expanduser()


def _read(path: Path) -> dict[str, Any]:
    try:
        document = orjson.loads(path.read_bytes())
    except OSError as error:
        raise ConfigError(Problem(str(path), f"cannot be read: {error.strerror}", "name a readable file")) from None
    except orjson.JSONDecodeError as error:
        raise ConfigError(Problem(str(path), f"is not JSON: {error}", "download the file again")) from None
    if not isinstance(document, dict):
        raise ConfigError(Problem(str(path), "is not a JSON object", f"name a model's {FILE}"))
    return document


def _init_shape(init: ModelInit) -> ModelShape:
    """Returns the shape of the model that `init-model` builds; its vocabulary may turn out smaller than the bound."""
    return ModelShape(
        hidden=init.hidden,
        layers=init.layers,
        heads=init.heads,
        kv_heads=init.kv_heads,
        head_dim=init.head_dim,
        intermediate=init.intermediate,
        vocabulary=init.vocabulary,
        tied=True,
        qk_norm=2 * init.head_dim,
    )
