"""`report`: the results of a run on one page, from what its learner has recorded, on any machine that may look."""

from pathlib import Path

from echo_queue.cli.inspect.audit import found_or_last
from echo_queue.cli.inspect.live.watcher import last_word, monitor_caller
from echo_queue.cli.inspect.show import newest_answers
from echo_queue.config import Config
from echo_queue.errors import Problem, ServiceError
from echo_queue.queue import Audit, Evaluations, Monitor
from echo_queue.reporting import results
from echo_queue.reporting.evaluation_record import EvaluationRecord
from echo_queue.reporting.run_record import RunRecord


def write(config: Config) -> Path:
    """Writes the report and, if the configuration asks for them, TensorBoard files, and returns the report's path.

    Where Redis does not answer, the updates are those of `metrics.jsonl` in the run's directory. Raises `ServiceError`
    where there are none either.
    """
    record = RunRecord(config.run.dir / "metrics.jsonl")
    queue, told = None, None
    try:
        caller = monitor_caller(config)
        queue, told = Monitor(caller), Evaluations(caller)
    except ServiceError as error:
        away = error
    updates = record.read(queue)
    if queue is None and not updates and not last_word(config):
        what = f"there is no metrics.jsonl in {config.run.dir}, and {away.problems[0].what}"
        raise ServiceError(Problem("report", what, away.problems[0].fix))
    return results.write(
        config,
        updates,
        audit=_audit(config, queue),
        answers=newest_answers(config),
        evaluations=EvaluationRecord(config.run.dir).read(told),
    )


def _audit(config: Config, queue: Monitor | None) -> Audit | None:
    """Returns what is known of the identity; None if nothing is, as of a run whose keys are not in Redis any more."""
    try:
        return found_or_last(config, queue)
    except ServiceError:
        return None
