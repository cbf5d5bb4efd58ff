"""The results that a run leaves for a person: the report, and what it needs."""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from echo_queue.config import Config
from echo_queue.errors import ConfigError, Problem
from echo_queue.evaluation.results import EvaluationResult
from echo_queue.queue import Audit
from echo_queue.reporting import html
from echo_queue.reporting.evaluation_record import EvaluationRecord
from echo_queue.reporting.metrics import UpdateMetrics


def write(
    config: Config,
    updates: Sequence[UpdateMetrics],
    *,
    audit: Audit | None = None,
    answers: html.Answers | None = None,
    evaluations: Sequence[EvaluationResult] | None = None,
) -> Path:
    """Writes the report, and returns its path. Raises `ConfigError` where a package for it is missing.

    `audit`: the queue's last, `answers`: the newest ones, as far as they are known. `evaluations`: None: those in
    the run's directory.
    """
    if missing := problem(config):
        raise ConfigError(missing)
    evaluations = EvaluationRecord(config.run.dir).read() if evaluations is None else evaluations
    if config.telemetry.tensorboard:
        from echo_queue.reporting import tensorboard

        tensorboard.write(updates, config.run.dir / "tensorboard", evaluations)
    return html.write(config, updates, audit=audit, answers=answers, evaluations=evaluations)


def problem(config: Config) -> Problem | None:
    """Returns the problem of a missing package, if any."""
    if find_spec("matplotlib") is None:
        return Problem("report.html", "needs matplotlib", "pip install 'echo-queue[report]'")
    if config.telemetry.tensorboard and find_spec("tensorboard") is None:
        fix = "pip install 'echo-queue[tensorboard]', or set it to false"
        return Problem("telemetry.tensorboard", "the package is not installed", fix)
    return None
