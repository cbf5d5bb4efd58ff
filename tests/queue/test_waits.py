"""A role that waits is woken only by what concerns it: workers by weights and tasks, the learner by missing groups."""

import threading
from collections.abc import Callable
from dataclasses import replace

import pytest

from echo_queue.records import Published, Version
from tests.queue.clients import Clients
from tests.queue.queue_harness import RULES, QueueHarness, group_of
from tests.waiting import wait_until

SHORT_S = 0.03
"""Long enough for an answer that is there already."""


def offered(queue: Clients, *names: str) -> int:
    """Returns how many of these workers have been offered a task and have not woken yet."""
    return sum(int(queue.client.exists(queue.keys.offer(name))) for name in names)


def told(queue: Clients, stream: str) -> list[bytes]:
    """The kinds of the stream's entries, the oldest first."""
    rows: list[tuple[bytes, dict[bytes, bytes]]] = queue.client.xrange(f"{queue.keys.prefix}{stream}")  # type: ignore[assignment]
    return [words[b"kind"] for _, words in rows]


def test_a_completion_wakes_no_worker(queue: Clients) -> None:
    harness = QueueHarness(queue, prompts=8)
    tasks = harness.lease(9)
    assert harness.lease(1, "w2") == ()
    cursor = queue.wait_for_weights("0-0", 5.0)
    harness.complete(tasks)
    assert queue.wait_for_weights(cursor, SHORT_S) == cursor
    assert not queue.wait_for_work("w2", SHORT_S)
    harness.publish(1)
    assert queue.wait_for_weights(cursor, 5.0) > cursor


def test_as_many_idle_workers_wake_as_tasks_came_and_all_at_the_end(queue: Clients) -> None:
    harness = QueueHarness(queue, prompts=0)
    woken: list[str] = []

    def wait(name: str) -> None:
        if queue.wait_for_work(name, 60.0):
            woken.append(name)

    names = [f"w{number}" for number in range(6)]
    for name in names:
        assert harness.lease(1, name) == ()
    threads = [threading.Thread(target=wait, args=(name,), daemon=True) for name in names]
    for thread in threads:
        thread.start()
    wait_until(lambda: blocked(queue) == 6, "the workers to wait")
    harness.submit("a", 2)
    wait_until(lambda: len(woken) == 2, "two workers to wake")
    assert blocked(queue) == 4
    queue.finish(0, force=True)
    for thread in threads:
        thread.join(60.0)
    assert sorted(woken) == names


def blocked(queue: Clients) -> int:
    rows = queue.client.client_list()
    return sum(row["cmd"] == "blpop" and "b" in row["flags"] for row in rows)


def _released(harness: QueueHarness) -> None:
    harness.queue.release("w1", [harness.task.id])  # type: ignore[attr-defined]
    harness.queue.reclaim()


def _revived(harness: QueueHarness) -> None:
    harness.queue.bury(harness.task.id, "by hand")  # type: ignore[attr-defined]
    harness.queue.revive([harness.task.id])  # type: ignore[attr-defined]


def _cancelled(harness: QueueHarness) -> None:
    for version in (1, 2, 3):
        harness.queue.advance(0, version, 0, 8.0)


def _taken_over(harness: QueueHarness) -> None:
    harness.lease(1, version=Version(0, 5))
    harness.queue.resume(Version(0, 0))


RETURNS: dict[str, Callable[[QueueHarness], None]] = {
    "released": _released, "revived": _revived, "expired": QueueHarness.expire, "cancelled": _cancelled,
    "taken over": _taken_over,
}  # fmt: skip


@pytest.mark.parametrize("how", RETURNS)
def test_a_task_that_comes_back_is_offered(queue: Clients, how: str) -> None:
    harness = QueueHarness(queue, prompts=1)
    version = Version(0, 5) if how == "taken over" else None
    (harness.task,) = harness.lease(1, version=version)  # type: ignore[attr-defined]
    assert harness.lease(1, "w2") == () and offered(queue, "w2") == 0
    RETURNS[how](harness)
    assert offered(queue, "w1", "w2") == 1, how


def test_a_lease_that_finds_nothing_withdraws_what_was_offered(queue: Clients) -> None:
    harness = QueueHarness(queue, prompts=0)
    assert harness.lease(1, "w2") == ()
    harness.submit("a", 1)
    assert offered(queue, "w2") == 1
    assert len(harness.lease(1)) == 1
    assert harness.lease(1, "w2") == () and offered(queue, "w2") == 0
    assert not queue.wait_for_work("w2", SHORT_S)


def test_many_tasks_at_once_wake_a_few_workers_whose_leases_wake_others_until_all_are_leased(queue: Clients) -> None:
    harness = QueueHarness(queue, replace(RULES, batch=125), prompts=0)
    names = [f"w{number}" for number in range(100)]
    for name in names:
        assert harness.lease(1, name) == ()
    harness.submit("a", 250)
    woken = [name for name in names if offered(queue, name)]
    assert len(woken) == 32, "each may lease several"
    leased, asked = 0, 0
    while woken:
        asked += len(woken)
        for name in woken:
            assert queue.wait_for_work(name, 5.0)
            leased += len(harness.lease(3, name))
        woken = [name for name in names if offered(queue, name)]
    assert leased == 250
    assert asked <= -(-250 // 3) + 32, "few ask in vain"


def test_a_lease_that_leaves_much_wakes_two_workers_and_one_that_leaves_nothing_none(queue: Clients) -> None:
    harness = QueueHarness(queue, replace(RULES, batch=65), prompts=0)
    names = ["w1", "w2", "w3", "w4"]
    harness.submit("a", 130)
    queue.client.zadd(queue.keys.idle, dict.fromkeys(names, 1000 * queue.client.time()[0]))  # type: ignore[index]
    harness.lease(4, "busy")
    assert offered(queue, *names) == 1, "126 are no more than 32 such workers lease"
    harness.lease(1, "busy")
    assert offered(queue, *names) == 3
    harness.lease(125, "busy")
    assert offered(queue, *names) == 3


def test_only_workers_that_wait_are_offered_tasks_those_first_that_have_waited_longest(queue: Clients) -> None:
    harness = QueueHarness(queue, prompts=0)
    names = ["w1", "w2", "w3", "w4", "w5"]
    for order, name in enumerate(names):
        assert harness.lease(1, name) == ()
        queue.client.zincrby(queue.keys.idle, order - len(names), name)
    queue.leave("w2", "rest")
    queue.client.zincrby(queue.keys.idle, -60_000, "w1")
    harness.submit("a", 2)
    assert [name for name in names if offered(queue, name)] == ["w3", "w4"], "w1 has not looked for a minute"
    assert len(harness.lease(1, "w5")) == 1
    harness.submit("b", 1)
    assert offered(queue, "w5") == 0, "it has work"
    assert all(queue.client.pttl(queue.keys.offer(name)) > 0 for name in ("w3", "w4"))


def test_workers_that_wait_for_weights_are_offered_tasks_once_these_are_published(queue: Clients) -> None:
    harness = QueueHarness(queue, prompts=3)
    lineage = queue.resume(Version(0, 0), 5).lineage
    assert queue.published() is None and harness.lease(3) == ()
    queue.publish(lineage, Published(Version(lineage, 0), "manifest", "digest"))
    assert offered(queue, "w1") == 1


def test_a_learner_is_told_when_half_of_what_it_lacks_is_ready(queue: Clients) -> None:
    harness = QueueHarness(queue, replace(RULES, batch=8, s=4), prompts=20)
    tasks = list(harness.lease(20))
    assert harness.drain(8).groups == ()
    needed, steps = 8, []
    while needed:
        cursor, done = told(queue, "arrivals"), 0
        while told(queue, "arrivals") == cursor:
            harness.complete((tasks.pop(),))
            done += 1
        steps.append(done)
        drained = harness.drain(needed)
        needed -= len(drained.groups)
    assert steps == [4, 2, 1, 1]
    before = told(queue, "arrivals")
    harness.complete(tuple(tasks))
    assert told(queue, "arrivals") == before, "it has its batch"


def test_a_completion_of_many_groups_tells_once_that_they_are_enough(queue: Clients) -> None:
    harness = QueueHarness(queue, replace(RULES, batch=4, s=4), prompts=9)
    tasks = harness.lease(9)
    harness.drain(4)
    cursor = "0-0"
    harness.complete(tasks)
    assert queue.wait_for_groups(cursor, 5.0) > cursor
    assert told(queue, "arrivals") == [b"ready"]


def test_a_learner_whose_groups_teach_nothing_is_told_of_those_that_come_in_their_place(queue: Clients) -> None:
    harness = QueueHarness(queue, replace(RULES, s=0, batch=2), prompts=4)
    harness.complete(harness.lease(2))
    assert len(harness.drain(2).groups) == 2
    before = told(queue, "arrivals")
    queue.skip(0, 2)
    others = harness.lease(2)
    assert told(queue, "arrivals") == before
    harness.complete(others[:1])
    assert told(queue, "arrivals") == [*before, b"ready"]


def test_a_learner_that_keeps_seats_is_told_when_those_may_have_come(queue: Clients) -> None:
    harness = QueueHarness(queue, replace(RULES, s=1, batch=2, late="wait"), prompts=6)
    late = harness.lease(2)
    queue.advance(0, 1, 0, 8.0)
    harness.publish(1)
    fresh = harness.lease(2)
    harness.complete(fresh)
    drained = harness.drain(2)
    assert (drained.groups, drained.seats, drained.ready) == ((), 2, 2)
    assert told(queue, "arrivals") == []
    queue.complete("w1", [group_of(late[0], "w1", Version(0, 0))])
    assert told(queue, "arrivals") == [b"ready"]


def test_a_learner_is_told_of_a_burial_because_there_may_be_nothing_left_to_wait_for(queue: Clients) -> None:
    harness = QueueHarness(queue, prompts=1)
    harness.drain(2)
    queue.bury("a/0/0", "by hand")
    assert queue.wait_for_groups("0-0", 5.0) != "0-0"
    assert harness.drain(2).exhausted


@pytest.mark.parametrize(("workers", "told_of"), [(0, 40), (200_000, 1)])
def test_the_more_workers_there_are_the_fewer_announced_parts_wake_them(
    queue: Clients, workers: int, told_of: int
) -> None:
    QueueHarness(queue, prompts=0)
    lineage = queue.resume().lineage
    before = told(queue, "weight_events").count(b"announced")
    queue.client.eval("for n = 1, ARGV[1] do redis.call('ZADD', KEYS[1], 0, n) end", 1, queue.keys.workers, workers)
    for place in range(40):
        assert queue.announce(lineage, Version(lineage, 1), "route", place, b"document")
    assert told(queue, "weight_events").count(b"announced") - before == told_of


def test_a_large_fleet_looks_for_weights_by_itself_and_is_not_woken_all_at_once(queue: Clients) -> None:
    harness = QueueHarness(queue, prompts=0)
    queue.client.eval("for n = 1, 300 do redis.call('ZADD', KEYS[1], 0, n) end", 1, queue.keys.workers)
    found: list[str] = []
    before = queue.wait_for_weights("0-0", 5.0)
    assert queue.wait_for_weights(before, SHORT_S) == before
    watcher = threading.Thread(target=lambda: found.append(queue.wait_for_weights(before, 60.0)), daemon=True)
    watcher.start()
    asked = queue.client.info("commandstats")["cmdstat_xread"]["calls"]
    wait_until(lambda: queue.client.info("commandstats")["cmdstat_xread"]["calls"] > asked + 2, "it to look again")
    assert not any(row["cmd"] == "xread" and "b" in row["flags"] for row in queue.client.client_list())
    harness.publish(1)
    watcher.join(60.0)
    assert found and found[0] > before


def test_a_completion_whose_entry_was_removed_by_hand_fails_no_honest_worker(queue: Clients) -> None:
    harness = QueueHarness(queue, prompts=2)
    gone, here = harness.lease(2)
    queue.client.xdel(queue.keys.tasks, gone.entry)
    done = [group_of(task, "w1", harness.version) for task in (gone, here)]
    assert [str(outcome) for outcome in queue.complete("w1", done)] == ["unknown", "accepted"]
