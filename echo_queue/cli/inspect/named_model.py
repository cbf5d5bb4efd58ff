"""Finds the model that a command names: `final`, `base`, `best`, a version, a model folder or a hub name.

The weights of a version are fetched from Redis and the store, once: who finds them in the run's directory asks neither.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from echo_queue.cli.inspect import weights
from echo_queue.cli.inspect.live.watcher import monitor_caller
from echo_queue.config import Config
from echo_queue.connections.secrets import Role
from echo_queue.errors import ConfigError, Problem, ServiceError
from echo_queue.evaluation.results import EvaluationResult, best_of
from echo_queue.models.exported import EXPORTS, exported_versions, mark_of
from echo_queue.models.hub import base_folder
from echo_queue.queue import Evaluations
from echo_queue.records import Version
from echo_queue.reporting.evaluation_record import EvaluationRecord
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


def find(config: Config, model: str, keep: Path | None = None, role: Role = "worker") -> FoundModel:
    """Returns the model of this name.

    `keep`: the folder for a version's weights that no earlier command has fetched; default: where the next one finds
    them. `role`: as whom to fetch them. Raises `ConfigError`, and `ServiceError` for a version that cannot be fetched.
    """
    if model == "base":
        return FoundModel(model, _base(config))
    if model == "final":
        folder = config.run.dir / "model"
        if not folder.is_dir():
            what = f"the run has no final model: there is no folder {folder}"
            raise ConfigError(Problem("MODEL", what, "name a version, such as 1.12, `base` or a model folder"))
        return FoundModel(model, str(folder))
    if model == "best":
        return _version(config, best_version(config, config.export.best), keep, role)
    if named := VERSION.fullmatch(model):
        number = int(named[2])
        version = Version(int(named[1]), number) if named[1] else _newest(config, number)
        return _version(config, version, keep, role)
    other = config.model_copy(update={"model": config.model.model_copy(update={"base": model, "revision": "main"})})
    return FoundModel(model, _base(other, "name a version, `final`, `base`, a model folder or a hub name"))


def best_version(config: Config, evaluation: str = "") -> Version:
    """Returns the version with the greatest mean in an evaluation. Raises `ConfigError` if there is none."""
    results = EvaluationRecord(config.run.dir).read() or _told(config)
    found = best_of(results)
    names = [evaluation] if evaluation else list(found)
    if not found or evaluation not in ("", *found):
        what = f"no version has been evaluated{f' by {evaluation}' if evaluation else ''} yet"
        raise ConfigError(Problem("best", what, "name a version, `final` or `base`"))
    if len(names) > 1:
        listed = ", ".join(f"{name}: {one.version}" for name, one in sorted(found.items()))
        raise ConfigError(Problem("best", f"the evaluations have a best version each ({listed})", "name the version"))
    return found[names[0]].version


def _told(config: Config) -> Sequence[EvaluationResult]:
    """Returns the results that Redis has; nothing if it does not answer."""
    try:
        return EvaluationRecord(config.run.dir).read(Evaluations(monitor_caller(config)))
    except ServiceError:
        return ()


def _base(config: Config, fix: str = "`echo-queue init-model CONFIG`, or name another model in model.base") -> str:
    try:
        folder = base_folder(config)
    except OSError as error:
        raise ConfigError(Problem("MODEL", str(error), fix)) from None
    if not Path(folder, "config.json").is_file():
        raise ConfigError(Problem("MODEL", f"there is no model in {folder}", fix))
    return folder


def _fetched(config: Config) -> Path:
    """Returns the folder of the weights that commands have fetched."""
    return config.run.dir / EVALS / "models"


def _version(config: Config, version: Version, keep: Path | None, role: Role) -> FoundModel:
    """Returns a version with the file of its weights, which is fetched unless it is here."""
    called, folder = str(version), config.run.dir / EXPORTS / str(version)
    if mark_of(folder):
        return FoundModel(called, str(folder))
    base, file = _base(config), _fetched(config) / f"{called}.safetensors"
    if not file.is_file():
        file = weights.fetch(config, called, (keep or file.parent) / file.name, role)
    return FoundModel(called, base, file)


def _newest(config: Config, number: int) -> Version:
    """Returns the version of this number of the newest lineage that has published it."""
    stored = [one for one, entry in catalogue(weights.StoredWeights.of(config).store).items() if entry.manifest]
    fetched = [Version.parse(file.stem) for file in _fetched(config).glob("*.safetensors")]
    known = [*stored, *fetched, *map(Version.parse, exported_versions(config.run.dir / EXPORTS))]
    if versions := [one for one in known if one.number == number]:
        return max(versions)
    what = f"no version of number {number} is stored: it was pruned, or never published"
    raise ConfigError(Problem("MODEL", what, weights.choose_among(known)))
