"""The engine that serves the model which is evaluated: a model folder, or the base model with a version's weights.

A version is loaded as a worker of its run loads it, so that every family is served as it was in training.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors import safe_open

from echo_queue.config import Config
from echo_queue.errors import ConfigError, Problem
from echo_queue.models.fingerprint import fingerprint
from echo_queue.records import BASE
from echo_queue.weights.lora import DESCRIPTION, LoraDescription, adapted, factors, merged_weight
from echo_queue.weights.tensors import matches
from workers import engines

if TYPE_CHECKING:
    from torch import Tensor


def digest_of(config: Config, weights: Path | None) -> str:
    """Returns the digest by which a file of answers knows its model. Raises `ConfigError` if it cannot be opened.

    It is the root that the learner signed for a version's weights, else the fingerprint of the model's files.
    """
    if weights is not None:
        with safe_open(weights, "numpy") as file:
            return str(file.metadata()["root"])
    found = fingerprint(config)
    if found.startswith("none: "):
        what = f"cannot be opened: {found.removeprefix('none: ')}"
        raise ConfigError(Problem(config.model.base, what, "name a model folder or a hub name"))
    return found


def engine_of(config: Config, stop_tokens: list[int], weights: Path | None) -> engines.Engine:
    """Makes the engine of `config.rollout.engine`. `weights`: a version's file, to be loaded over the base model.

    Raises `ConfigError` for a model that cannot be opened, or weights that do not fit it.
    """
    engine = engines.create(config, config.base_model, BASE, stop_tokens)
    if weights is not None:
        from safetensors.torch import load_file

        try:
            engine.load(BASE, _whole(engine, load_file(weights)))
        except BaseException:
            engine.close()
            raise
    return engine


def _whole(engine: engines.Engine, tensors: "Mapping[str, Tensor]") -> "Mapping[str, Tensor]":
    """Returns all weights of a version, whose adapters, if it has them, are merged into the base model served."""
    if DESCRIPTION not in tensors:
        return tensors
    description, found = LoraDescription.of(tensors[DESCRIPTION]), {}
    for info in description.base:
        found[info.name] = engine.weight(info.name).detach().cpu().clone()
        if not matches(found[info.name], info):
            what = f"is another one than that of this version's adapters: {info.name} differs"
            raise ConfigError(Problem("model.base", what, "give the configuration of the run"))
    for name in adapted(tensors):
        a, b = factors(tensors, name)
        found[name] = merged_weight(found[name], a, b, description.scaling)
    return found
