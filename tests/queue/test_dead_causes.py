"""Why prompts died, and the end of a run whose first prompts all die."""

import pytest

from echo_queue.errors import HOPELESS, HopelessError
from echo_queue.queue import Chunk, PromptSet, RunRules
from echo_queue.queue.dead_causes import FIRST_DEAD, DeadCause, causes, check_first_groups
from echo_queue.queue.types import DeadTask
from echo_queue.records import PromptShard
from tests.queue.clients import Clients
from tests.queue.queue_harness import RULES, QueueHarness

RAISED = "Traceback (most recent call last):\n  rewards.py, line 2\nKeyError: 'answer'"


def kill(harness: QueueHarness, prompts: int) -> None:
    """Lets prompts die of failed attempts, one after another: what came back is leased first."""
    for attempt in range(prompts * RULES.max_attempts):
        [task] = harness.lease(1)
        assert harness.queue.fail("w1", task.id, RAISED), attempt
        harness.queue.reclaim()


def test_reasons_are_counted_by_their_cause_without_attempt_and_worker(queue: Clients) -> None:
    harness = QueueHarness(queue)
    kill(harness, 2)
    assert queue.bury("a/0/7", "by hand: too long") is False, "it is not admitted"
    [task] = harness.lease(1)
    queue.bury(task.id, "by hand: too long")
    first, second = causes(queue.dead())
    assert (first.reason, first.tasks) == ("KeyError: 'answer'", 2)
    assert second == DeadCause("by hand: too long", 1, task.id)


def died(*reasons: str) -> list[DeadTask]:
    return [DeadTask(f"a/0/{at}", 3, f"attempt 3 by w1: {why}", "w1", 0) for at, why in enumerate(reasons)]


def test_reasons_that_differ_in_the_place_of_a_sample_are_one() -> None:
    cause, other = causes(died(*(f"None as reward {at}" for at in (2, 0, 11)), "2 rewards for 3"))
    assert cause == DeadCause("None as reward 2", 3, "a/0/0")
    assert other.tasks == 1


def test_a_long_reason_is_cut_in_its_middle() -> None:
    [cause] = causes(died("KeyError: " + "x" * 9_000 + " (rewards.py, line 12)"))
    assert cause.reason.startswith("KeyError: xx") and cause.reason.endswith("x (rewards.py, line 12)")
    assert len(cause.reason) == 300


def test_a_run_whose_first_prompts_all_die_is_hopeless(queue: Clients) -> None:
    harness = QueueHarness(queue)
    kill(harness, FIRST_DEAD - 1)
    assert not check_first_groups(queue)
    kill(harness, 1)
    reason = r"first 3 prompts died.*3× \(for example a/0/.\): KeyError: 'answer'"
    with pytest.raises(HopelessError, match=reason) as told:
        check_first_groups(queue)
    assert told.value.exit_code == HOPELESS
    assert queue.revive([task.id for task in queue.dead()]) == FIRST_DEAD
    assert not check_first_groups(queue), "it goes on with the dead"


def test_what_is_broken_in_one_component_does_not_end_a_mixture(queue: Clients) -> None:
    rules = RunRules(s=20, batch=4, pace=False, max_attempts=1, mixture="a:1 b:1")
    harness = QueueHarness(queue, rules, prompts=0)
    for name in ("a", "b.more"):
        queue.declare(PromptSet(name, "test"), [Chunk(0, 0, 10)])
    for name in ("a", "b.more"):
        queue.submit(name, 0, PromptShard(name, 0, 10))
    leased = harness.lease(2 * FIRST_DEAD)
    of = {name: [task for task in leased if task.set.startswith(name)] for name in "ab"}
    assert [len(tasks) for tasks in of.values()] == [FIRST_DEAD] * 2
    for task in (*of["b"], *of["a"][1:]):
        queue.fail("w1", task.id, "KeyError: 'answer'")
    queue.reclaim()
    assert queue.status().dead == 2 * FIRST_DEAD - 1
    assert not check_first_groups(queue), "a third prompt of the other component may be completed yet"
    queue.fail("w1", of["a"][0].id, "KeyError: 'answer'")
    queue.reclaim()
    with pytest.raises(HopelessError, match="first 6 prompts died"):
        check_first_groups(queue)


def test_once_a_group_is_completed_no_dead_prompt_ends_the_run(queue: Clients) -> None:
    harness = QueueHarness(queue)
    harness.complete(harness.lease(1))
    kill(harness, FIRST_DEAD)
    assert check_first_groups(queue)


def test_prompts_that_a_person_buries_do_not_end_the_run(queue: Clients) -> None:
    harness = QueueHarness(queue)
    for task in harness.lease(FIRST_DEAD):
        queue.bury(task.id, "by hand")
    assert not check_first_groups(queue)
