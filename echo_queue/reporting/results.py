"""The results that a run leaves for a person: the report, and the marker of a finished run."""

from importlib.util import find_spec
from pathlib import Path

from echo_queue import failpoints
from echo_queue.config import Config
from echo_queue.errors import ConfigError, Problem
from echo_queue.reporting import html, metrics


def write(config: Config, *, identity: bool | None = None, dead: int | None = None) -> Path:
    """Writes the report, and returns its path. Raises `ConfigError` where a package for it is missing."""
    if missing := problem(config):
        raise ConfigError(missing)
    if config.telemetry.tensorboard:
        from echo_queue.reporting import tensorboard

        updates = metrics.read(config.run.dir / "metrics.jsonl")
        tensorboard.write(updates, config.run.dir / "tensorboard")
    if identity is None and marker(config).exists():
        identity = True
    return html.write(config, identity=identity, dead=dead)


def marker(config: Config) -> Path:
    """The file that is written when a run has ended and its identity holds."""
    return config.run.dir / "finished.json"


def reopen(config: Config) -> None:
    """Removes the marker, before prompts are added: a command killed in between must not leave a run marked as over."""
    failpoints.step("remove marker", lambda: marker(config).unlink(missing_ok=True))


def problem(config: Config) -> Problem | None:
    """Returns the problem of a missing package, if any."""
    if find_spec("matplotlib") is None:
        return Problem("report.html", "needs matplotlib", "pip install 'echo-queue[learner]'")
    if config.telemetry.tensorboard and find_spec("tensorboard") is None:
        fix = "pip install 'echo-queue[tensorboard]', or set it to false"
        return Problem("telemetry.tensorboard", "the package is not installed", fix)
    return None
