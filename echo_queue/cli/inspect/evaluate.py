"""The command `eval`: finds the model that is to be evaluated, and becomes the program that evaluates it.

The weights of a version are fetched once, into `evals/models` of the run's directory, where a command that goes on
finds them without the run's services.
"""

import re
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from echo_queue.cli.inspect import weights
from echo_queue.config import Config
from echo_queue.errors import ConfigError, Problem
from echo_queue.launch.roles import become
from echo_queue.models.hub import base_folder
from echo_queue.records import Version
from echo_queue.weights.catalogue import catalogue

EVALS = "evals"
"""The folder in the run's directory that has files of answers, and the weights of versions."""
VERSION = re.compile(r"(?:(\d+)\.)?(\d+)")


@dataclass(frozen=True)
class FoundModel:
    """A model folder, or a hub's model in its cache; `weights`: those of a version, to be loaded over it."""

    called: str
    folder: str
    weights: Path | None = None


def evaluate(path: Path, config: Config, model: str, out: Path | None, options: Mapping[str, object]) -> NoReturn:
    """Becomes the program. `options`: further options of it, by name; None, an empty text and False are not given."""
    found = find(config, model)
    of_set = options.get("name") or Path(str(options.get("source") or "").partition(" ")[0]).stem
    file = re.sub(r"[^\w.-]+", "-", f"{found.called}-{of_set}").strip("-")
    words: dict[str, object] = {
        "model": found.folder,
        "weights": found.weights,
        "called": found.called,
        "out": out or config.run.dir / EVALS / f"{file}.jsonl",
        "typed": shlex.join(["echo-queue", *sys.argv[1:]]),
        **options,
    }
    given = ((name, one) for name, one in words.items() if one is not None and one is not False and one != "")
    become("workers.evaluation", path, *(f"--{name}" if one is True else f"--{name}={one}" for name, one in given))


def find(config: Config, model: str) -> FoundModel:
    """Returns the model of this name. Raises `ConfigError`, and `ServiceError` for a version that cannot be fetched."""
    if model == "base":
        return FoundModel(model, _base(config))
    if model == "final":
        folder = config.run.dir / "model"
        if not folder.is_dir():
            what = f"the run has no final model: there is no folder {folder}"
            raise ConfigError(Problem("MODEL", what, "name a version, such as 1.12, `base` or a model folder"))
        return FoundModel(model, str(folder))
    if named := VERSION.fullmatch(model):
        version, file = _fetched(config, named[1], int(named[2]))
        return FoundModel(str(version), _base(config), file)
    other = config.model_copy(update={"model": config.model.model_copy(update={"base": model, "revision": "main"})})
    return FoundModel(model, _base(other, "name a version, `final`, `base`, a model folder or a hub name"))


def _base(config: Config, fix: str = "`echo-queue init-model CONFIG`, or name another model in model.base") -> str:
    try:
        folder = base_folder(config)
    except OSError as error:
        raise ConfigError(Problem("MODEL", str(error), fix)) from None
    if not Path(folder, "config.json").is_file():
        raise ConfigError(Problem("MODEL", f"there is no model in {folder}", fix))
    return folder


def _fetched(config: Config, lineage: str | None, number: int) -> tuple[Version, Path]:
    """Returns a version with the file of its weights, which is fetched unless an earlier command has done so.

    A number alone stands for the newest lineage that has published it.
    """
    folder = config.run.dir / EVALS / "models"
    known = [Version.parse(file.stem) for file in folder.glob("*.safetensors")]
    if lineage is None:
        stored = [one for one, entry in catalogue(weights.StoredWeights.of(config).store).items() if entry.manifest]
        versions = [one for one in (*stored, *known) if one.number == number]
        if not versions:
            what = f"no version of number {number} is stored: it was pruned, or never published"
            raise ConfigError(Problem("MODEL", what, "choose one that `echo-queue weights ls CONFIG` lists"))
        version = max(versions)
    else:
        version = Version(int(lineage), number)
    file = folder / f"{version}.safetensors"
    return version, file if version in known else weights.fetch(config, str(version), file)
