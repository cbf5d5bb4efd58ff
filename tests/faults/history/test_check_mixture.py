"""The checker notices a mixture whose shares are not kept, in a hand-made history."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from echo_queue.queue import ComponentStatus
from tests.faults.history.checker import Evidence, Snapshot, judge
from tests.faults.history.test_checker import FINAL, a_good_run

Counts = Sequence[tuple[int, int]]
"""Admitted prompts and backlog of each component."""
FULL = 1_000


def components(*counts: tuple[int, int]) -> tuple[ComponentStatus, ...]:
    named = zip(("a", "b"), (3.0, 1.0), counts, strict=True)
    return tuple(ComponentStatus(name, weight, *both, 0) for name, weight, both in named)


def a_mixture(*seen: Counts, undone: int = 0) -> Evidence:
    """A run in which these were seen one after another, and of which all is known in the end."""
    run, last = a_good_run(), components(*seen[-1])
    looks = [Snapshot(float(at), FINAL, components(*counts), undone) for at, counts in enumerate(seen)]
    total = sum(one.admitted for one in last)
    return replace(run, snapshots=tuple(looks), components=last, counts={"admitted": total}, batch=10)


def kinds(evidence: Evidence) -> set[str]:
    return {violation.kind for violation in judge(evidence).violations}


FAIR = ((4, FULL), (1, FULL)), ((64, FULL), (21, FULL)), ((94, FULL), (31, FULL))


def test_a_mixture_that_keeps_its_shares_breaks_none() -> None:
    verdict = judge(a_mixture(*FAIR))
    assert verdict.ok, str(verdict)
    assert "120 prompts admitted in 1 stretches without a lack, at most 0.0 off a share" in str(verdict)
    assert judge(a_good_run()).shares is None


@pytest.mark.parametrize(
    "evidence",
    [
        a_mixture(*FAIR, ((124, FULL), (31, FULL))),
        a_mixture(*FAIR, ((194, FULL), (31, FULL)), undone=1),
        replace(a_mixture(*FAIR), counts={"admitted": 126}),
        a_mixture(((1, FULL), (0, FULL)), ((2, FULL), (0, FULL))),
    ],
    ids=["one alone", "more than a debt", "uncounted", "leased and not admitted"],
)
def test_shares_that_are_not_kept_are_noticed(evidence: Evidence) -> None:
    assert kinds(evidence) == {"share"}


def test_who_ran_out_is_owed_nothing_and_a_debt_may_be_paid() -> None:
    ran_out = a_mixture(*FAIR, ((154, FULL), (32, 1)), ((214, FULL), (32, 0)), ((244, FULL), (42, 9)))
    judged = judge(ran_out).shares
    assert kinds(ran_out) == {"share"} and judged is not None and judged.stretches == 1
    assert not kinds(a_mixture(*FAIR, ((114, FULL), (31, FULL)), undone=1))
