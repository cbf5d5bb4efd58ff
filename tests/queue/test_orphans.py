"""Objects that dead workers left in the store are removed; those that a completion under way may need never are."""

from dataclasses import replace

import pytest

from echo_queue.connections.storage.object_store import ObjectStore
from echo_queue.queue import Outcome
from echo_queue.queue.orphans import Sweeper
from echo_queue.queue.payloads import new_reference
from echo_queue.records import PartialGroup, Task
from echo_queue.records.group_codec import encode
from tests.queue.clients import Clients
from tests.queue.queue_harness import QueueHarness, group_of, partial_of


@pytest.fixture
def harness(spilling: Clients) -> QueueHarness:
    return QueueHarness(spilling)


@pytest.fixture
def sweeper(spilling: Clients, object_store: ObjectStore) -> Sweeper:
    return Sweeper(spilling.caller, object_store)


def stored(store: ObjectStore) -> set[str]:
    return {found.key for found in store.list("replay/")}


def left_behind(harness: QueueHarness, store: ObjectStore, task: Task, worker: str) -> str:
    """Stores a group of `task`, as `worker` does before it dies; returns the key."""
    data = encode(group_of(task, worker, harness.version))
    store.put(key := new_reference(task.id, data), data)
    return key


def test_what_a_dead_worker_left_of_a_trained_task_goes_in_the_second_sweep(
    harness: QueueHarness, sweeper: Sweeper, object_store: ObjectStore
) -> None:
    (task,) = harness.lease(1)
    left = left_behind(harness, object_store, task, "dead")
    harness.complete((task,))
    harness.update(1)
    assert [sweeper.sweep(), stored(object_store)] == [0, {left}]
    assert [sweeper.sweep(), stored(object_store)] == [1, set()]


def test_what_lost_against_another_worker_goes_and_the_winner_stays(
    harness: QueueHarness, sweeper: Sweeper, object_store: ObjectStore
) -> None:
    (task,) = harness.lease(1)
    left = left_behind(harness, object_store, task, "dead")
    harness.complete((task,), "w1")
    (kept,) = stored(object_store) - {left}
    assert [sweeper.sweep(), sweeper.sweep(), sweeper.sweep()] == [0, 1, 0]
    assert stored(object_store) == {kept}
    assert len(harness.drain(1).groups) == 1


def test_a_completion_that_is_repeated_leaves_one_object(
    harness: QueueHarness, sweeper: Sweeper, object_store: ObjectStore
) -> None:
    tasks = harness.lease(1)
    assert [*harness.complete(tasks), *harness.complete(tasks)] == [Outcome.accepted] * 2
    assert [len(stored(object_store)), sweeper.sweep(), sweeper.sweep(), len(stored(object_store))] == [2, 0, 1, 1]
    assert len(harness.drain(1).groups) == 1


def test_a_completion_under_way_finds_its_payload_however_long_it_takes(
    harness: QueueHarness, spilling: Clients, sweeper: Sweeper, object_store: ObjectStore
) -> None:
    """The worker has stored its group, and is stopped before it says so."""
    (task,) = harness.lease(1)
    group = group_of(task, "slow", harness.version)
    spilling.payloads.keep_group(group)
    for _ in range(3):
        assert sweeper.sweep() == 0
    spilling.overrule(replace(harness.rules, max_attempts=1))
    harness.expire()
    assert spilling.audit().dead == 1
    for _ in range(3):
        assert sweeper.sweep() == 0
    assert spilling.complete("slow", [group]) == [Outcome.accepted]
    assert len(harness.drain(1).groups) == 1


def test_a_group_completed_between_two_sweeps_stays(
    harness: QueueHarness, sweeper: Sweeper, object_store: ObjectStore
) -> None:
    tasks = harness.lease(3)
    for task in tasks:
        harness.complete((task,))
        assert sweeper.sweep() == 0
    assert len(stored(object_store)) == 3
    assert len(harness.drain(3).groups) == 3


def test_junk_under_the_prefix_goes_and_nothing_else_does(
    harness: QueueHarness, sweeper: Sweeper, object_store: ObjectStore
) -> None:
    for key in ("replay/junk", "replay/a/b/c", "weights/0001/x", "replays/x"):
        object_store.put(key, b"x")
    assert [sweeper.sweep(), sweeper.sweep()] == [0, 2]
    assert {found.key for found in object_store.list()} == {"weights/0001/x", "replays/x"}


def test_the_stored_partial_of_a_task_goes_once_it_is_no_longer_under_way(
    harness: QueueHarness, spilling: Clients, sweeper: Sweeper, object_store: ObjectStore
) -> None:
    done, held = tasks = harness.lease(2)
    spilling.progress("w1", [PartialGroup(task.id, 0, (partial_of(0, length=20),)) for task in tasks])
    partials = {found.key for found in object_store.list("partials/")}
    assert len(partials) == 2
    harness.complete((done,))
    assert [sweeper.sweep(), sweeper.sweep(), sweeper.sweep()] == [0, 1, 0]
    harness.expire()
    assert set(harness.leased(1, "w2").partials) == {held.id}
