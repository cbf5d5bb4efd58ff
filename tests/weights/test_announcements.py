"""Promises of announcements: only of what is stored, in order, and never of what would gain nothing."""

from concurrent.futures import Future
from itertools import permutations

import pytest
import torch

from echo_queue.records import Version
from echo_queue.storage.object_store import ObjectStore
from echo_queue.weights import Announcement
from echo_queue.weights.announcements import OrderedAnnouncements
from echo_queue.weights.manifest import Part
from tests.weights.published_weights import VERIFIER, drifted, history, manifest_of, model, weight_publisher


def part(number: int) -> Part:
    return Part(f"part {number}", 1, 1, ("ab" * 32,))


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_uploads_that_end_in_any_order_are_told_of_in_theirs(order: tuple[int, ...]) -> None:
    told: list[tuple[int, Part]] = []
    stored = OrderedAnnouncements(lambda place, part: told.append((place, part)))
    uploads = [Future[None]() for _ in order]
    for number, upload in enumerate(uploads):
        stored.follow(part(number), upload)
    for place, number in enumerate(order):
        uploads[number].set_result(None)
        ended = order[: place + 1]
        assert [place for place, _ in told] == [n for n in range(3) if set(range(n + 1)) <= set(ended)]
    assert told == [(number, part(number)) for number in range(3)]


def test_of_a_single_part_nothing_is_told_until_another_follows() -> None:
    told: list[int] = []
    stored, upload = OrderedAnnouncements(lambda place, part: told.append(place)), Future[None]()
    stored.follow(part(0), upload)
    upload.set_result(None)
    assert told == []
    stored.follow(part(1), Future())
    assert told == [0]


def test_nothing_is_told_of_what_was_not_stored_nor_of_what_comes_after() -> None:
    told: list[int] = []
    stored, uploads = OrderedAnnouncements(lambda place, part: told.append(place)), [Future[None]() for _ in range(3)]
    for number, upload in enumerate(uploads):
        stored.follow(part(number), upload)
    uploads[0].set_result(None)
    uploads[1].set_exception(OSError("full"))
    uploads[2].set_result(None)
    assert told == [0]


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
