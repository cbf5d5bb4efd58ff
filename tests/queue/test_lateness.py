"""No group older than S updates is trained; a late one goes back, and is waited for the second time."""

import time
from dataclasses import replace

from echo_queue.queue import Outcome, RunRules
from echo_queue.records import Task
from tests.queue.clients import Clients
from tests.queue.queue_harness import QueueHarness

RULES = RunRules(s=1, batch=1, lease_ms=60_000, pace=False)


def test_a_group_over_the_bound_goes_back_in_the_same_call(queue: Clients) -> None:
    harness = QueueHarness(queue, RULES)
    harness.complete(harness.lease(2))
    for _ in range(2):
        queue.advance(0, harness.learner_version + 1, 0, 8.0)
    harness.publish(2)
    drained = harness.drain(0)  # even if the learner wants nothing now
    assert (drained.groups, drained.late) == ((), 2)
    again = harness.lease(2)
    assert [(task.late, task.attempt, task.pv, task.min_pv) for task in again] == [(1, 0, 2, 2)] * 2
    assert harness.count("late") == 2


def test_a_group_at_the_bound_is_trained(queue: Clients) -> None:
    harness = QueueHarness(queue, RULES)
    harness.complete(harness.lease(1))
    queue.advance(0, 1, 0, 8.0)
    (group,) = harness.drain(1).groups
    assert queue.status().learner.number - group.oldest == 1


def test_a_group_in_flight_that_can_no_longer_make_it_is_cancelled_at_once(queue: Clients) -> None:
    harness = QueueHarness(queue, RULES)
    slow = harness.lease(1, "slow")
    assert harness.advance(0) == 0
    assert harness.advance(0) == 1
    assert queue.renew("slow", {slow[0].id: 0}) == [slow[0].id]
    harness.publish(2)
    assert (harness.lease(1, "fast")[0].id, harness.count("cancelled")) == (slow[0].id, 1)
    # its late answer is refused, and the task stays where it is
    assert harness.complete(slow, "slow", oldest=0) == [Outcome.late]


def test_a_completion_that_is_already_too_late_frees_its_lease(queue: Clients) -> None:
    harness = QueueHarness(queue, RULES)
    tasks = harness.lease(1)
    queue.renew("w1", {tasks[0].id: 2})  # the worker believes that it began with version 2
    for _ in range(2):
        harness.advance(0)
    harness.publish(2)
    assert harness.complete(tasks, oldest=0) == [Outcome.late]
    assert queue.reclaim().late == 1
    harness.check()
    (again,) = harness.lease(1, "w2")
    assert (again.id, again.late, again.attempt) == (tasks[0].id, 1, 0)


def test_a_stale_tag_makes_the_worker_fetch_what_is_still_admissible(queue: Clients) -> None:
    harness = QueueHarness(queue, RULES)
    for _ in range(3):
        harness.advance(0)
    harness.publish(3)
    task = harness.lease(1)[0]
    assert (task.pv, task.min_pv) == (0, 2)


def _late_once(harness: QueueHarness) -> tuple[Task, ...]:
    """A task that was late, now leased again at the newest version, which the next update will make the oldest."""
    harness.complete(harness.lease(1))
    for _ in range(2):
        harness.advance(0)
    harness.publish(2)
    assert harness.drain(1).late == 1
    return harness.lease(1, "slow")


def test_what_was_late_once_is_waited_for_the_second_time(queue: Clients) -> None:
    harness = QueueHarness(queue, RULES)
    slow = _late_once(harness)
    harness.advance(0)
    harness.publish(3)
    harness.complete(harness.lease(1, "fast"), "fast")
    waiting = harness.drain(1)
    assert (waiting.groups, waiting.seats, waiting.ready) == ((), 1, 1)
    assert harness.complete(slow, "slow", oldest=2) == [Outcome.accepted]
    arrived = harness.drain(1)
    assert ([group.task for group in arrived.groups], arrived.seats) == ([slow[0].id], 0)
    assert queue.client.zcard(queue.keys.awaited) == 0


def test_waiting_ends_at_its_deadline(queue: Clients) -> None:
    harness = QueueHarness(queue, replace(RULES, late_deadline_ms=50))
    queue.reclaim()  # from here on the queue's clock goes
    _late_once(harness)
    harness.advance(0)
    harness.publish(3)
    fast = harness.lease(1, "fast")
    harness.complete(fast, "fast")
    assert harness.drain(1).seats == 1
    time.sleep(0.06)
    given_up = harness.drain(1)
    assert ([group.task for group in given_up.groups], given_up.seats) == ([fast[0].id], 0)


def test_late_wait_keeps_a_seat_the_first_time_already(queue: Clients) -> None:
    harness = QueueHarness(queue, replace(RULES, late="wait"))
    slow = harness.lease(1, "slow")
    harness.advance(0)
    harness.publish(1)
    harness.complete(harness.lease(1, "fast"), "fast")
    assert harness.drain(1).seats == 1
    harness.complete(slow, "slow", oldest=0)
    assert [group.task for group in harness.drain(1).groups] == [slow[0].id]


def test_no_group_is_ever_trained_beyond_s_however_slow_its_worker(queue: Clients) -> None:
    harness = QueueHarness(queue, RunRules(s=2, batch=2, pace=False), prompts=24)
    held: list[tuple[tuple[Task, ...], int]] = []
    for turn in range(200):
        version = harness.learner_version
        held.append((harness.lease(3, f"w{turn}"), harness.version.number))
        if turn % 3 == 2:  # the slowest of three answers last
            for tasks, begun in sorted(held, key=lambda one: len(one[0])):
                harness.complete(tasks, oldest=begun)
            held.clear()
        groups = harness.update().groups
        assert all(version - group.oldest <= 2 for group in groups)
        if queue.audit().trained == 24:
            return
    raise AssertionError(queue.status())
