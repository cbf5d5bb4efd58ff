"""What would grow for as long as a run lasts has a bound, or an end (docs/operations.md has the table)."""

from dataclasses import replace

import pytest

from echo_queue.records import BASE, Version
from tests.queue.clients import Clients
from tests.queue.queue_harness import RULES, QueueHarness

FORKS_KEPT = 1000
DEAD_WHOLE, SHORT_BYTES = 1000, 256


@pytest.mark.slow
def test_of_many_lineages_the_newest_thousand_know_where_they_began(queue: Clients) -> None:
    harness = QueueHarness(queue)
    (task,) = harness.lease(1)
    for lineage in range(1, FORKS_KEPT + 3):
        assert queue.resume(BASE, 0).lineage == lineage
    forks = {int(number) for number in queue.client.hkeys(queue.keys.forks)}
    assert forks == set(range(3, FORKS_KEPT + 3))
    newest = max(forks)
    assert not queue.lease("late", Version(newest, 0), 1).abandoned
    assert queue.lease("early", Version(1, 0), 1).abandoned or task.lineage == 0
    harness.check()


def test_the_reasons_of_the_first_thousand_dead_tasks_are_whole_and_the_others_short(queue: Clients) -> None:
    """A broken environment kills every prompt: these may not fill the memory that the others need."""
    harness = QueueHarness(queue, replace(RULES, batch=DEAD_WHOLE + 2), prompts=DEAD_WHOLE + 3)
    while queue.admit():
        pass
    traceback = "Traceback … " + "x" * 4_000 + " ValueError: no such file"
    for index in range(DEAD_WHOLE + 2):
        assert queue.bury(f"a/0/{index}", traceback)
    dead = queue.dead(DEAD_WHOLE + 2)
    lengths = sorted(len(task.reason) for task in dead)
    assert lengths == [SHORT_BYTES] * 2 + [len(traceback)] * DEAD_WHOLE
    assert all(task.reason.endswith("ValueError: no such file") for task in dead)
    assert queue.revive([dead[0].id]) == 1
    harness.check()


def test_a_dead_task_keeps_its_reason_in_one_place(queue: Clients) -> None:
    harness = QueueHarness(queue, prompts=1)
    for attempt in range(3):
        (task,) = harness.lease(1, f"w{attempt}")
        queue.fail(f"w{attempt}", task.id, "ValueError: poison")
        queue.reclaim()
    assert queue.dead()[0].reason == "attempt 2 by w2: ValueError: poison"
    assert not queue.client.exists(queue.keys.failures)
