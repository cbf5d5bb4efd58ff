"""When an evaluation is due: decided by its results, so that a restart forgets and repeats nothing."""

from echo_queue.config import Evaluation
from echo_queue.evaluation.results import EvaluationResult
from echo_queue.records import Version


def is_due(
    evaluation: Evaluation, newest: EvaluationResult | None, version: Version, now_s: float, *, last: bool
) -> bool:
    """Returns whether `version`, the newest one that is published, is to be evaluated.

    `newest`: the newest result of the surviving history. `now_s`: seconds since the epoch. `last`: no update follows.
    Without a result it is due; with one, `every_updates` counts the multiples of it that were passed since.
    """
    if newest is None:
        return True
    number, before = version.number, newest.version.number
    if number <= before:
        return False
    passed = evaluation.every_updates and number // evaluation.every_updates > before // evaluation.every_updates
    return last or bool(passed) or 0 < evaluation.every_s <= now_s - newest.time_s
