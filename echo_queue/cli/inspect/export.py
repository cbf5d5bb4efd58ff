"""The command `export`: finds a model of the run, and becomes the program that writes it as a Hugging Face folder."""

import shutil
from pathlib import Path
from typing import NoReturn

from echo_queue.cli.inspect.named_model import VERSION, FoundModel, find
from echo_queue.config import Config
from echo_queue.errors import ConfigError, Problem
from echo_queue.launch.roles import become
from echo_queue.models.exported import refuse_foreign, temporary_of

NAMES = ("final", "best", "base")


def export(path: Path, config: Config, version: str, folder: Path, *, adapter: bool, within_run: bool) -> NoReturn:
    """Becomes the program. `within_run`: the learner exports, with its own rights.

    Raises `ConfigError` for a folder or a version that cannot be, `ServiceError` for one that cannot be fetched.
    """
    if version not in NAMES and not VERSION.fullmatch(version):
        fix = f"write a version, such as 1.12 or 12, or one of {', '.join(NAMES)}"
        raise ConfigError(Problem("VERSION", f"{version!r} is no version of a run", fix))
    folder = folder.resolve()
    refuse_foreign(folder)
    workshop = temporary_of(folder)
    try:
        workshop.mkdir(parents=True, exist_ok=True)
        found = find(config, version, workshop, "learner" if within_run else "worker")
        source = _adapters(found) if adapter and found.weights is None else found.folder
    except OSError as error:
        what = f"cannot be written: {error.strerror or error}"
        raise ConfigError(Problem(str(folder), what, "name another folder, or make room")) from None
    except BaseException:
        shutil.rmtree(workshop, ignore_errors=True)
        raise
    options = [f"--model={source}", f"--called={found.called}", f"--to={folder}"]
    options += [f"--weights={found.weights}"] if found.weights else []
    become("learner.export", path, *options, *(["--adapter"] if adapter else []))


def _adapters(found: FoundModel) -> str:
    """Returns the adapters' folder in that of a model that was written whole."""
    folder = Path(found.folder, "adapter")
    if found.called == "base" or not folder.is_dir():
        what = f"{found.called} has no adapters: there is no folder {folder}"
        raise ConfigError(Problem("--adapter", what, "leave --adapter out, or name a version that is stored"))
    return str(folder)
