"""A record above the limit lies in object storage, with only its pointer in the stream, and never outlives its use."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from echo_queue.connections.storage.object_store import ObjectStore
from echo_queue.errors import ServiceError
from echo_queue.queue import LearnerQueue, Outcome
from echo_queue.queue.payloads import Payloads
from echo_queue.records import Version
from tests.queue.clients import Clients
from tests.queue.queue_harness import RULES, QueueHarness, group_of


def stored(store: ObjectStore) -> list[str]:
    return [found.key for found in store.list("replay/")]


def test_a_large_group_travels_through_the_store_and_is_removed_once_committed(
    spilling: Clients, object_store: ObjectStore
) -> None:
    harness = QueueHarness(spilling)
    harness.complete(harness.lease(1))
    (key,) = stored(object_store)
    entries: Any = spilling.client.xrange(spilling.keys.replay)
    assert [words.get(b"ref") for _, words in entries] == [key.encode()]
    assert all(b"group" not in words for _, words in entries)
    place: Any = spilling.client.hget(spilling.keys.open, "a/0/0")
    assert place.endswith(b" in store")
    (group,) = harness.update(1).groups
    assert group.task == "a/0/0"
    assert stored(object_store) == []


def test_a_drained_group_stays_in_the_store_until_it_is_committed(spilling: Clients, object_store: ObjectStore) -> None:
    harness = QueueHarness(spilling)
    harness.complete(harness.lease(1))
    assert len(harness.drain(1).groups) == 1
    lineage = spilling.resume().lineage
    assert [group.task for group in spilling.pending(lineage)] == ["a/0/0"]
    assert len(stored(object_store)) == 1


def test_a_refused_group_leaves_nothing_in_the_store(spilling: Clients, object_store: ObjectStore) -> None:
    harness = QueueHarness(spilling)
    tasks = harness.lease(1)
    harness.complete(tasks, "w1")
    assert harness.complete(tasks, "w2") == [Outcome.duplicate]
    assert len(stored(object_store)) == 1
    assert len(harness.drain(1).groups) == 1


def test_a_group_that_goes_back_leaves_nothing_in_the_store(spilling: Clients, object_store: ObjectStore) -> None:
    harness = QueueHarness(spilling)
    harness.complete(harness.lease(2))
    for version in (1, 2):
        spilling.advance(0, version, 0, 8.0)
    assert harness.drain(1).late == 2
    assert stored(object_store) == []


class SlowRemoval:
    """A store in which a worker completes a group while a removal is under way."""

    def __init__(self, store: ObjectStore, complete: Callable[[], object]) -> None:
        self._store, self._complete = store, complete

    def put(self, key: str, data: bytes) -> None:
        self._store.put(key, data)

    def get(self, key: str, most_bytes: int | None = None) -> bytes:
        return self._store.get(key, most_bytes)

    def delete(self, keys: list[str]) -> None:
        self._complete()
        self._store.delete(keys)


def test_a_group_generated_again_with_the_same_bytes_outlives_the_removal_of_the_first(
    spilling: Clients, object_store: ObjectStore
) -> None:
    """A worker that generates without chance makes the same group again, maybe before the first object is gone."""
    harness = QueueHarness(spilling)
    harness.complete(harness.lease(1))
    ((_, words),) = entries = spilling.client.xrange(spilling.keys.replay)
    store = SlowRemoval(object_store, lambda: harness.complete(harness.lease(1)))
    learner = LearnerQueue(spilling.caller, Payloads(store, 0), lineage=0)
    assert learner.return_unfit(words[b"id"], entries[0][0])
    assert len(stored(object_store)) == 1
    assert [group.task for group in harness.drain(1).groups] == ["a/0/0"]


def test_a_checkpoint_that_holds_a_group_frees_its_object(spilling: Clients, object_store: ObjectStore) -> None:
    harness = QueueHarness(spilling)
    harness.complete(harness.lease(1))
    harness.commit(["a/0/0"])
    assert stored(object_store) == []


def test_a_group_whose_object_is_torn_is_buried_with_the_reason(spilling: Clients, object_store: ObjectStore) -> None:
    harness = QueueHarness(spilling, replace(RULES, s=5, max_attempts=1))
    (task,) = harness.lease(1)
    harness.complete((task,))
    (key,) = stored(object_store)
    object_store.put(key, object_store.get(key)[:-1])
    assert harness.drain(1).malformed == 1
    assert "holds other bytes than its name says" in {task.id: task.reason for task in spilling.dead()}[task.id]
    assert stored(object_store) == []


def test_a_group_whose_object_is_gone_is_generated_again_as_often_as_there_are_attempts(
    spilling: Clients, object_store: ObjectStore
) -> None:
    """The store has lost it. The last loss buries it with the reason; a group that is there is trained."""
    harness = QueueHarness(spilling, replace(RULES, s=5, max_attempts=3))
    for attempt in range(3):
        (task,) = harness.lease(1)
        assert task.attempt == attempt
        harness.complete((task,))
        object_store.delete(stored(object_store))
        assert harness.drain(1).groups == ()
    (dead,) = spilling.dead()
    assert (dead.id, dead.attempts) == (task.id, 3) and "is gone from object storage" in dead.reason
    assert (harness.count("missing"), harness.count("buried")) == (3, 1)
    harness.complete(harness.lease(1))
    assert len(harness.drain(1).groups) == 1
    harness.check()


def test_a_learner_without_a_store_says_what_it_lacks(spilling: Clients) -> None:
    harness = QueueHarness(spilling)
    spilling.complete("w1", [group_of(task, "w1", Version(0, 0)) for task in harness.lease(1)])
    with pytest.raises(ServiceError, match="this role has no store"):
        Clients(spilling.client, spilling.run).drain(0, 1)
