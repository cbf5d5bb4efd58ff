"""Promises of announcements: only of what is stored, in order, and never of what would gain nothing."""

import threading
from typing import Any

import pytest
import torch

from echo_queue.connections.storage.object_store import ObjectStore
from echo_queue.records import Version
from echo_queue.weights import Announcement
from echo_queue.weights.part_makers import PartMaker, StoredPart
from tests.weights.published_weights import VERIFIER, drifted, history, manifest_of, model, weight_publisher


class RecordedAnnouncements:
    """The announcements of a weight publisher; each part must lie in the store by then."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self.all: list[Announcement] = []

    def __call__(self, announcement: Announcement, document: bytes) -> None:
        assert Announcement.decode(VERIFIER.open(document, "told"), "told") == announcement
        assert self._store.exists(announcement.part.key)
        self.all.append(announcement)


def test_what_is_announced_is_the_route_of_the_manifest_part_by_part(object_store: ObjectStore) -> None:
    told = RecordedAnnouncements(object_store)
    learner, versions = weight_publisher(object_store, announce=told, encrypt=True), history(2)
    learner.publish(Version(1, 0), versions[0], "float32")
    assert told.all == [], "the first of a lineage: most workers have it"
    for number in (1, 2):
        told.all.clear()
        published = learner.publish(Version(1, number), versions[number], "float32")
        route = manifest_of(object_store, published).route
        assert len(route.parts) > 1
        assert [one.part for one in told.all] == list(route.parts)
        assert [one.place for one in told.all] == list(range(len(route.parts)))
        assert {(one.route, one.base_root) for one in told.all} == {(route.name, route.base_root)}
        learner.further(published.version)
        assert len(told.all) == len(route.parts), "further routes come after the pointer"


def test_a_difference_given_up_is_followed_by_the_anchor(object_store: ObjectStore) -> None:
    told = RecordedAnnouncements(object_store)
    learner = weight_publisher(object_store, announce=told)
    for number in range(2):
        tensors = {f"noise{place}": torch.randn(9_000) for place in range(6)}
        published = learner.publish(Version(1, number), tensors, "float32")
    route = manifest_of(object_store, published).route
    assert route.base is None
    delta, anchor = ([one for one in told.all if (one.base is None) == whole] for whole in (False, True))
    assert delta and told.all == [*delta, *anchor]
    assert [one.part for one in anchor] == list(route.parts)


def test_routes_of_a_single_part_are_not_announced(object_store: ObjectStore) -> None:
    told = RecordedAnnouncements(object_store)
    learner = weight_publisher(object_store, announce=told, part_bytes=1 << 20)
    for number, tensors in enumerate((model(), drifted(model(), 1))):
        learner.publish(Version(1, number), tensors, "float32")
    assert told.all == []


def test_parts_that_are_stored_in_any_order_are_announced_in_theirs(
    object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first part is stored last of the first few; an announced part lies in the store, and so do all before it."""
    told, put, others = RecordedAnnouncements(object_store), ObjectStore.put, threading.Semaphore(0)
    learner, versions = weight_publisher(object_store, announce=told), history(1)
    learner.publish(Version(1, 0), versions[0], "float32")
    make, thread = PartMaker._part, threading.local()

    def make_part(self: PartMaker, making: Any, place: int) -> StoredPart | None:
        thread.place = place
        return make(self, making, place)

    def put_first_late(self: ObjectStore, key: str, data: bytes, once: bool = False) -> bool:
        if key.endswith(".part") and thread.place == 0:
            assert others.acquire(timeout=120) and others.acquire(timeout=120)
            assert told.all == []
        done = put(self, key, data, once)
        others.release()
        return done

    monkeypatch.setattr(PartMaker, "_part", make_part)
    monkeypatch.setattr(ObjectStore, "put", put_first_late)
    published = learner.publish(Version(1, 1), versions[1], "float32")
    assert [one.part for one in told.all] == list(manifest_of(object_store, published).route.parts)
