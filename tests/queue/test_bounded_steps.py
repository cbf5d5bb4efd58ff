"""What may find much to do does it in steps, and no move looks at more than it moves."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from echo_queue.queue import Outcome, RunRules, library
from echo_queue.queue.operator import SWEEP_MAX
from echo_queue.records import Task, Version
from tests.queue.clients import Clients
from tests.queue.queue_harness import QueueHarness, group_of, run_out
from tests.waiting import wait_until

RULES = RunRules(s=1, batch=500, lease_ms=60_000, max_attempts=3, pace=False)
MANY = 150
"""More than four steps of a cancellation, and more than one of any other move."""
FORGET_MS = 50
BEYOND_LUA = 4001
"""Tasks of which two words each are more than a Lua function passes to another."""
WRITES = {"hset", "hdel", "hincrby", "zadd", "zrem", "xdel"}


def _commands(queue: Clients, move: Callable[[], object]) -> dict[str, int]:
    """Returns how often the server runs each command while `move` is made."""
    queue.client.config_resetstat()
    move()
    stats = queue.client.info("commandstats")
    return {name.removeprefix("cmdstat_"): int(row["calls"]) for name, row in stats.items() if name != "cmdstat_info"}


def _overtaken(queue: Clients) -> QueueHarness:
    """A run whose learner has gone on by two updates, while as many tasks were in flight as no step may cancel."""
    harness = QueueHarness(queue, RULES, prompts=MANY)
    harness.lease(MANY, "slow")
    harness.advance(0)
    return harness


def test_an_update_cancels_a_step_and_the_housekeeper_the_rest(queue: Clients) -> None:
    harness = _overtaken(queue)
    cancelled = [harness.advance(0)]
    while moved := queue.reclaim().leases:
        cancelled.append(moved)
        harness.check()
    assert sum(cancelled) == MANY and max(cancelled) == SWEEP_MAX
    assert (queue.status().retry, queue.status().in_flight, harness.count("cancelled")) == (MANY, 0, MANY)
    harness.publish(2)
    assert {(task.late, task.attempt, task.min_pv) for task in harness.lease(MANY)} == {(1, 0, 1)}


def test_what_no_step_has_cancelled_yet_is_refused_and_keeps_no_seat(queue: Clients) -> None:
    harness = QueueHarness(queue, replace(RULES, late="wait"), prompts=MANY)
    tasks = harness.lease(MANY, "slow")
    for _ in range(2):
        harness.advance(0)
    status = queue.status()
    assert status.in_flight == MANY - SWEEP_MAX
    assert harness.complete(tasks[-1:], "slow", oldest=0) == [Outcome.late]
    assert harness.drain(1).seats == 0


def test_a_new_lineage_sends_back_all_that_abandoned_weights_make(queue: Clients) -> None:
    harness = QueueHarness(queue, RULES, prompts=MANY)
    harness.advance(0)
    harness.publish(1)
    held = harness.lease(MANY, "w1")
    harness.version = Version(queue.resume().lineage, 0)
    harness.check()
    assert (queue.status().in_flight, queue.status().retry) == (0, MANY)
    assert queue.renew("w1", {held[-1].id: 1}) == [held[-1].id]


def test_what_is_too_late_in_replay_goes_back_in_steps_of_one_drain(queue: Clients) -> None:
    harness = QueueHarness(queue, RULES, prompts=MANY + 1)
    harness.complete(harness.lease(MANY))
    for _ in range(2):
        harness.advance(0)
    harness.publish(2)
    harness.complete(harness.lease(1, "fast"), "fast")
    drained = harness.drain(2)
    assert ([group.worker for group in drained.groups], drained.late, drained.ready) == (["fast"], MANY, 0)


def test_a_learner_that_restarts_gets_all_that_it_had_in_hand_or_sends_it_back(queue: Clients) -> None:
    harness = QueueHarness(queue, RULES, prompts=300)
    harness.complete(harness.lease(300 - MANY))
    first = [group.task for group in harness.drain(300).groups]
    harness.advance(0)
    harness.publish(1)
    harness.complete(harness.lease(MANY))
    second = [group.task for group in harness.drain(300).groups]
    assert (len(first), len(second)) == (300 - MANY, MANY)
    lineage = queue.resume(Version(0, 1)).lineage
    assert [group.task for group in queue.pending(lineage)] == first + second
    lineage = queue.resume(Version(0, 0)).lineage  # what version 1 made is abandoned
    assert [group.task for group in queue.pending(lineage)] == first
    assert queue.status().retry == MANY
    harness.check()


def test_a_drain_costs_the_same_whatever_is_in_flight(queue: Clients) -> None:
    harness = QueueHarness(queue, replace(RULES, s=0, late="wait"), prompts=400)
    harness.lease(1)
    queue.drain(0, 1)  # notes since when it waits
    costs = []
    for _ in range(2):
        harness.lease(MANY)
        costs.append(_commands(queue, lambda: queue.drain(0, 1)))
    assert queue.drain(0, 1).seats == 2 * MANY + 1
    assert costs[0] == costs[1] and costs[0]["fcall"] == 1


def test_a_sweep_that_finds_nothing_asks_for_no_worker_and_no_task(queue: Clients) -> None:
    harness = QueueHarness(queue, RULES, prompts=400)
    queue.reclaim()
    costs = []
    for worker in range(2):
        harness.lease(MANY, f"w{worker}")
        costs.append(_commands(queue, queue.reclaim))
    assert costs[0] == costs[1]
    assert not {"xpending", "xinfo|consumers", "xrange"} & set(costs[0])


def test_a_worker_that_only_renews_is_not_forgotten(queue: Clients) -> None:
    queue.client.function_load(library.source().replace("3600000", str(FORGET_MS)), replace=True)
    try:
        harness = QueueHarness(queue, RULES, prompts=4)
        queue.reclaim()
        (kept, *_) = harness.lease(2, "steady")
        queue.release("gone", [task.id for task in harness.lease(1, "gone")])

        def forgotten() -> bool:
            queue.reclaim()
            assert queue.renew("steady", {kept.id: 0}) == []
            names = {row["name"] for row in queue.client.xinfo_consumers(queue.keys.tasks, "workers")}
            return b"gone" not in names and b"steady" in names

        wait_until(forgotten, "the end of a worker that holds nothing")
        assert queue.client.zscore(queue.keys.consumers, "gone") is None
        harness.check()
    finally:
        library.load(queue.client)


def test_what_was_handed_back_is_due_at_once_and_cannot_be_renewed(queue: Clients) -> None:
    harness = QueueHarness(queue, RULES, prompts=3)
    back, failed, kept = harness.lease(3)
    queue.release("w1", [back.id])
    queue.fail("w1", failed.id, "why")
    assert queue.renew("w1", {task.id: 0 for task in (back, failed, kept)}) == [back.id, failed.id]
    swept = queue.reclaim()
    assert (swept.released, swept.failed, swept.leases) == (1, 1, 2)
    harness.check()


def test_a_lease_that_is_renewed_before_the_sweep_goes_on(queue: Clients) -> None:
    harness = QueueHarness(queue, RULES, prompts=1)
    (task,) = harness.lease(1)
    run_out(queue, task.id)
    assert queue.renew("w1", {task.id: 0}) == []
    assert queue.reclaim().leases == 0


@pytest.mark.parametrize(
    "by_hand",
    [
        "XREADGROUP GROUP workers thief COUNT 100 STREAMS {tasks} >",
        "ZREM {leases} {leased}",
        "ZADD {leases} inf {leased}",
        "ZADD {leases} -inf {leased}",
        "ZREM {in_flight} {leased}",
        "XACK {tasks} workers {entry}",
        "ZADD {leases} 0 nothing 5 a/0/3 -2 a/0/99",
        "ZADD {in_flight} -7 nothing 0 a/0/3",
        "HSET {open} a/0/99 nonsense a/0/98 tasks",
    ],
)
def test_whatever_a_worker_does_to_leases_by_hand_every_task_comes_back(queue: Clients, by_hand: str) -> None:
    harness = QueueHarness(queue, replace(RULES, lease_ms=40), prompts=90)
    (task,) = harness.lease(1, "silent")
    places = {"leased": task.id, "entry": task.entry}
    queue.client.execute_command(*(word.format(**vars(queue.keys), **places) for word in by_hand.split()))
    seen: set[str] = set()

    def all_back() -> bool:
        queue.reclaim()
        tasks = queue.lease("honest", harness.version, 100).tasks
        queue.complete("honest", [group_of(task, "honest", harness.version) for task in tasks])
        seen.update(task.id for task in tasks)
        return len(seen) == 90

    wait_until(all_back, "all tasks", 5.0)


@pytest.mark.parametrize("listed", ["x", "0-0 a/0/1", "0-0 a/0/99", "0-0 "])
def test_groups_that_a_worker_has_made_up_are_skipped(queue: Clients, listed: str) -> None:
    harness = QueueHarness(queue, RULES, prompts=4)
    (task, *_) = harness.lease(2)
    harness.complete((task,))
    queue.client.hset(queue.keys.open, "a/0/99", "replay 0-0")
    queue.client.zadd(queue.keys.ready, {listed: 0})
    assert not queue.audit().ok
    assert [group.task for group in queue.drain(0, 2).groups] == [task.id]
    queue.client.hdel(queue.keys.open, "a/0/99")
    audit = queue.audit()
    assert (audit.difference, audit.misplaced, audit.forged) == (0, 0, 1)
    assert [group.task for group in queue.pending(0)] == [task.id]
    assert harness.count("forged") == 1


def test_a_move_writes_what_becomes_of_twenty_tasks_in_as_many_commands_as_of_one(queue: Clients) -> None:
    harness = QueueHarness(queue, RULES, prompts=21)

    def written(many: int) -> list[dict[str, int]]:
        tasks: list[Task] = []
        leased = _commands(queue, lambda: tasks.extend(queue.lease("w1", harness.version, many).tasks))
        harness.complete(tuple(tasks))
        drained = _commands(queue, lambda: queue.drain(0, many))
        committed = _commands(queue, lambda: queue.commit(0, f"of {many}", [task.id for task in tasks]))
        harness.check()
        return [{name: one[name] for name in WRITES & one.keys()} for one in (leased, drained, committed)]

    assert written(20) == written(1)


def test_a_worker_may_lease_any_number_of_tasks_at_once(queue: Clients) -> None:
    harness = QueueHarness(queue, replace(RULES, batch=BEYOND_LUA), prompts=BEYOND_LUA)
    while queue.admit():
        pass
    assert len(harness.lease(BEYOND_LUA)) == BEYOND_LUA
    assert queue.status().in_flight == BEYOND_LUA
