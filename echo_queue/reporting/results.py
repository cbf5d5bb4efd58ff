"""What a run leaves for a person to look at."""

from importlib.util import find_spec
from pathlib import Path

from echo_queue import failpoints
from echo_queue.config import Config
from echo_queue.errors import ConfigError, Problem
from echo_queue.reporting import html, metrics


def write(config: Config, *, identity: bool | None = None) -> Path:
    """The report's path. Raises `ConfigError` where a package for it is missing."""
    if missing := problem(config):
        raise ConfigError(missing)
    if config.telemetry.tensorboard:
        from echo_queue.reporting import tensorboard

        updates = metrics.read(config.run.dir / "metrics.jsonl")
        tensorboard.write(updates, config.run.dir / "tensorboard")
    if identity is None and marker(config).exists():
        identity = True
    return html.write(config, identity=identity)


def marker(config: Config) -> Path:
    """Written when a run has ended and its identity was found kept."""
    return config.run.dir / "finished.json"


def reopen(config: Config) -> None:
    """Before there is more to train: a command that is killed in between must not leave a run that says it is over."""
    failpoints.step("remove marker", lambda: marker(config).unlink(missing_ok=True))


def problem(config: Config) -> Problem | None:
    """The package that is missing here, if any."""
    if find_spec("matplotlib") is None:
        return Problem("report.html", "needs matplotlib", "pip install 'echo-queue[learner]'")
    if config.telemetry.tensorboard and find_spec("tensorboard") is None:
        fix = "pip install 'echo-queue[tensorboard]', or set it to false"
        return Problem("telemetry.tensorboard", "the package is not installed", fix)
    return None
