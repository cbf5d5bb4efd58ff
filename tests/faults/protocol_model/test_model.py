"""The small model keeps every promise in every state; without any one of its rules there is a way to break one."""

import pytest

from tests.faults.protocol_model.model import RULES, Protocol, without
from tests.faults.protocol_model.search import INSTANCES, STUCK, search, smallest

IDENTITY = "the identity: submitted ≠ backlog + tasks + replay + trained"
BEYOND = "trained beyond S"
ABANDONED = "trained on what abandoned weights made"
OUTLIVES = "a partial rollout outlives its task"
TWICE = "trained twice in the surviving checkpoints"

BREAKS = {
    "checkpoint_before_commit": (STUCK, ("commit 1.1: a", "the learner dies")),
    "dedupe": (IDENTITY, ("worker 1 completes a, made by 1.0; the reply is lost, it is sent again",)),
    "check_at_drain": (BEYOND, ("train b, lag 1, and advance to 2",)),
    "check_abandoned": (ABANDONED, ("the learner dies", "train b, lag 0, and advance to 2")),
    "forks_know_parents": (ABANDONED, ("the learner hangs, and another is started", "leases b and generates with 2.1")),
    "fence": (BEYOND, ("the learner hangs, and another is started", "ghost: drain")),
    "turns": (TWICE, ("drain; Redis forgets it again", "save checkpoint 1.2: a a")),
    "tokens": (STUCK, ("drain; the reply is lost, it is sent again",)),
    "reclaim": (STUCK, ()),
    "keep_consumers_with_leases": (STUCK, ("consumer 1 is deleted, with a pending",)),
    "commit_on_resume": (TWICE, ("save checkpoint 1.1: a", "the learner dies", "save checkpoint 2.2: a")),
    "uncommit_on_resume": (STUCK, ("the learner dies, and checkpoint 1.1 with it",)),
    "pending_on_resume": (STUCK, ("drain", "the learner dies")),
    "checkpoint_on_resume": (STUCK, ("ghost: save checkpoint 2.1: a",)),
    "publish_what_was_forgotten": (STUCK, ("publish 1.0; Redis forgets it again",)),
    "commits_know_their_steps": (TWICE, ("commit 1.2: a", "the learner dies", "save checkpoint 2.3: b")),
    "check_partials_at_lease": (STUCK, ("worker 1 keeps how far it is with a", "the operator rewinds to 1.0")),
    "partials_end_with_their_task": (OUTLIVES, ("worker 1 keeps how far it is with a", "worker 1 completes a")),
    "progress_of_holders": (OUTLIVES, ("worker 1 completes a", "worker 2 keeps how far it is with a")),
}
"""The promise that breaks and the shortest events that lead there, by the rule that is left out."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "protocol",
    [
        pytest.param(
            one,
            marks=[] if one.partials else [pytest.mark.proof(kind="instances of the model", share=0.33)],
            id=f"s={one.s} workers={one.workers} partial rollouts={one.partials}",
        )
        for one in INSTANCES
    ],
)
def test_no_interleaving_with_one_fault_breaks_a_promise(protocol: Protocol) -> None:
    verdict = search(protocol)
    assert not verdict.broken, "\n".join((verdict.broken, *verdict.trace))
    assert verdict.states > 10_000


DEEP = {"check_abandoned", "checkpoint_on_resume", "commits_know_their_steps", "forks_know_parents"}
"""The shortest way to break a promise without one of these is long: `make proof` looks for it, CI for half of them."""


@pytest.mark.parametrize(
    "rule",
    [
        pytest.param(rule, marks=[pytest.mark.proof(kind="rules of the model", share=0.5)] if rule in DEEP else [])
        for rule in RULES
    ],
)
def test_without_this_rule_a_promise_breaks(rule: str) -> None:
    promise, story = BREAKS[rule]
    verdict = smallest(without(rule))
    assert verdict.broken == promise
    told = iter(verdict.trace)
    assert all(any(line in step for step in told) for line in story), "\n".join(verdict.trace)


def test_without_faults_too_the_whole_protocol_drains() -> None:
    assert not search(Protocol(faults=0)).broken
