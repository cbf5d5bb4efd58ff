import pytest

from echo_queue.config import Evaluation
from echo_queue.records import Version
from learner.evaluation.schedule import is_due
from tests.evaluation.answered import result_at

NOW_S = result_at(20).time_s


@pytest.mark.parametrize(
    ("number", "every_updates", "due"),
    [(20, 20, False), (39, 20, False), (40, 20, True), (45, 20, True), (21, 1, True), (1_000, 0, False)],
)
def test_an_evaluation_is_due_once_a_multiple_of_every_updates_was_passed(
    number: int, every_updates: int, due: bool
) -> None:
    evaluation = Evaluation(name="a", every_updates=every_updates)
    assert is_due(evaluation, result_at(20), Version(1, number), NOW_S, last=False) is due


def test_it_is_due_after_every_s_if_there_is_a_newer_version() -> None:
    evaluation = Evaluation(name="a", every_updates=0, every_s=60.0)
    later = Version(1, 21)
    assert not is_due(evaluation, result_at(20), later, NOW_S + 59, last=False)
    assert is_due(evaluation, result_at(20), later, NOW_S + 60, last=False)
    assert not is_due(evaluation, result_at(20), Version(2, 20), NOW_S + 60, last=False), "the same weights"


def test_the_first_and_the_last_version_are_always_due_and_none_twice() -> None:
    never = Evaluation(name="a", every_updates=0)
    assert is_due(never, None, Version(1, 0), NOW_S, last=False)
    assert is_due(never, None, Version(2, 7), NOW_S, last=False), "also where version 0 has passed"
    assert is_due(never, result_at(20), Version(1, 21), NOW_S, last=True)
    assert not is_due(never, result_at(20), Version(1, 20), NOW_S, last=True)
