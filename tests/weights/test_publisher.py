"""Promises of publishing, kept on every real store."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest
import torch

from echo_queue import weights
from echo_queue.config import Weights
from echo_queue.connections.storage.object_store import MissingObject, ObjectStore
from echo_queue.errors import FencedError, ServiceError
from echo_queue.records import Version
from echo_queue.weights import delta, part_makers, publisher
from echo_queue.weights.catalogue import catalogue
from echo_queue.weights.delta.codes import DTYPES
from echo_queue.weights.layout import Share
from echo_queue.weights.part_makers import PartMaker, RouteOrder
from tests.weights.published_weights import (
    VERIFIER,
    drifted,
    fetch,
    history,
    manifest_of,
    model,
    publish,
    publish_all,
    same,
    weight_publisher,
)


def test_fetched_weights_are_bit_for_bit_those_published(object_store: ObjectStore) -> None:
    published = publish(object_store, model(), Version(1, 3))
    assert published.manifest == "weights/0001/00000003/manifest.json"
    assert same(fetch(object_store, published), model())
    assert len(manifest_of(object_store, published).route.parts) > 1


def test_bfloat16_rounds_floating_tensors_only(object_store: ObjectStore) -> None:
    published = weight_publisher(object_store).publish(Version(0, 0), model(), "bfloat16")
    assert same(fetch(object_store, published), model(), torch.bfloat16)


def test_tied_weights_are_stored_once_and_come_back_tied(object_store: ObjectStore) -> None:
    published = publish(object_store, model())
    fetched = fetch(object_store, published)
    assert manifest_of(object_store, published).aliases == {"head": "embedding"}
    assert fetched["head"] is fetched["embedding"]


@pytest.mark.slow
@pytest.mark.parametrize("encrypt", [False, True])
def test_chains_of_differences_skips_and_anchors_are_bit_exact(object_store: ObjectStore, encrypt: bool) -> None:
    versions = history(11)
    published = publish_all(object_store, versions, encrypt=encrypt, anchor_every=6, part_bytes=90_000)
    for number in (11, 10, 7, 5, 3, 0):
        assert same(fetch(object_store, published[number]), versions[number])
    entries = catalogue(object_store)
    assert {name.partition("-")[0] for entry in entries.values() for name in entry.routes} == {"full", "from"}
    assert [version.number for version, entry in entries.items() if entry.anchored] == [0, 6]


def test_differences_over_several_publications_are_aligned_like_a_skip_list(object_store: ObjectStore) -> None:
    publish_all(object_store, history(8))
    from_where = {
        version.number: sorted(int(name[-8:]) for name in entry.routes if name != "full")
        for version, entry in catalogue(object_store).items()
    }
    assert from_where == {0: [], 1: [0], 2: [0, 1], 3: [2], 4: [0, 2, 3], 5: [4], 6: [4, 5], 7: [6], 8: [0, 4, 6, 7]}


def test_a_difference_hardly_smaller_than_the_whole_is_published_whole(object_store: ObjectStore) -> None:
    learner = weight_publisher(object_store)
    for number in range(3):
        published = learner.publish(Version(0, number), {"noise": torch.randn(50_000)}, "float32")
        assert manifest_of(object_store, published).route.base is None
        learner.further(Version(0, number))
    assert all(list(entry.routes) == ["full"] for entry in catalogue(object_store).values())


def test_a_model_that_changed_its_shape_begins_anew(object_store: ObjectStore) -> None:
    learner = weight_publisher(object_store)
    learner.publish(Version(0, 0), {"w": torch.zeros(9_000)}, "float32")
    wider = learner.publish(Version(0, 1), {"w": torch.zeros(9_001)}, "float32")
    assert manifest_of(object_store, wider).route.base is None
    assert same(fetch(object_store, wider), {"w": torch.zeros(9_001)})


def test_a_new_lineage_begins_with_all_of_its_weights(object_store: ObjectStore) -> None:
    versions = history(2)
    publish_all(object_store, versions)
    published = publish_all(object_store, versions, lineage=1)
    assert manifest_of(object_store, published[0]).route.base is None
    assert manifest_of(object_store, published[1]).route.base == Version(1, 0)


def test_versions_left_out_are_no_gap(object_store: ObjectStore) -> None:
    versions, learner = history(9), weight_publisher(object_store)
    for number in (0, 1, 5, 9):
        published = learner.publish(Version(0, number), versions[number], "float32")
        learner.further(Version(0, number))
    assert manifest_of(object_store, published).route.base == Version(0, 5)
    assert same(fetch(object_store, published), versions[9])


def test_a_learner_that_died_while_publishing_publishes_the_same_bytes_again(object_store: ObjectStore) -> None:
    first = publish(object_store, model(), encrypt=True)
    listed = list(object_store.list())
    assert publish(object_store, model(), encrypt=True) == first
    assert list(object_store.list()) == listed


def test_two_learners_cannot_publish_one_version(object_store: ObjectStore) -> None:
    published = publish(object_store, model())
    with pytest.raises(FencedError, match="another learner"):
        publish(object_store, model(1))
    assert same(fetch(object_store, published), model())


@pytest.mark.parametrize("number", [3, 4])
def test_versions_only_ascend(object_store: ObjectStore, number: int) -> None:
    learner = weight_publisher(object_store)
    learner.publish(Version(0, 4), model(), "float32")
    with pytest.raises(ValueError, match="only ascend"):
        learner.publish(Version(0, number), model(), "float32")


@pytest.mark.slow
def test_an_anchor_is_due_once_the_deltas_since_the_last_come_to_twice_its_bytes(object_store: ObjectStore) -> None:
    learner, owed, anchor, dues = weight_publisher(object_store), 0, 0, []
    for number, tensors in enumerate(history(24, share=0.2)):
        published = learner.publish(Version(0, number), tensors, "float32")
        route = manifest_of(object_store, published).route
        owed, anchor = (owed + route.size, anchor) if route.base else (0, route.size)
        dues.append(owed > 2 * anchor)
        made = [one for one in learner.further(Version(0, number)) if one.base is None]
        assert bool(made) == dues[-1], number
        owed, anchor = (0, made[0].size) if made else (owed, anchor)
    assert dues.count(True) >= 2 and dues.count(False) >= 2


def test_a_hurried_learner_leaves_differences_out_and_puts_anchors_off(object_store: ObjectStore) -> None:
    learner, made = weight_publisher(object_store, anchor_every=2), []
    for number, tensors in enumerate(history(5)):
        learner.publish(Version(0, number), tensors, "float32")
        made.append([route.base for route in learner.further(Version(0, number), lambda: True)])
    assert made == [[], [], [], [], [None], []]


def test_few_parts_are_in_memory_and_they_leave_while_others_are_coded(
    object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store is slow: the coders must wait for it, and not store everything at the end."""
    events: list[str] = []
    cut, put, slow = part_makers.cut, ObjectStore.put, threading.Semaphore(0)

    def watched_cut(*arguments: Any) -> Any:
        events.append("coded")
        slow.release()
        return cut(*arguments)

    def slow_put(self: ObjectStore, key: str, data: bytes, once: bool = False) -> bool:
        if key.endswith(".part"):
            slow.acquire(timeout=0.2)
            events.append("stored")
        return put(self, key, data, once)

    monkeypatch.setattr(part_makers, "cut", watched_cut)
    monkeypatch.setattr(ObjectStore, "put", slow_put)
    publish(object_store, {f"w{number}": torch.randn(2_000) for number in range(20)}, part_bytes=1_024)
    ahead = [events[: place + 1].count("coded") - events[: place + 1].count("stored") for place in range(len(events))]
    assert events.count("coded") == 20
    assert events.index("stored") < len(events) - events[::-1].index("coded") - 1
    assert max(ahead) <= part_makers.UPLOADS + part_makers.CODING


@pytest.mark.parametrize("share", [0.02, 0.2, 0.9])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_delta_composed_of_changes_is_the_delta_between_two_copies(
    object_store: ObjectStore, share: float, dtype: str
) -> None:
    """… byte for byte. Only the newest version is held; what came before is subtracted from it."""
    spans, codec = (2, 4), delta.Settings(shard_bytes=1 << 20)
    shares = [Share.whole(tensors, dtype, codec.shard_bytes) for tensors in history(4, share=share)]
    maker = PartMaker(object_store, Weights(chunk_bytes=1 << 20, coding="small"))
    for number, share_of in enumerate(shares):
        maker.take(share_of)
        list(maker.make(RouteOrder(Version(0, number), Version(0, number - 1) if number else None, 1)))
        maker.keep(number)
    for span in spans:
        (composed,) = maker.make(RouteOrder(Version(0, 4), Version(0, 4 - span), span))
        base, new = (_tensors(shares[number]) for number in (4 - span, 4))
        (direct,) = delta.encode(base, new, shares[4].layout.aliases, codec)
        assert composed and object_store.get(composed.part.key) == direct.data


def _tensors(share: Share) -> dict[str, torch.Tensor]:
    """Puts a share of one part, whose tensors have one piece each, together to tensors of the types it tells."""
    (part,) = share.layout.parts
    kinds = {one.names[0]: getattr(torch, DTYPES[one.dtype]) for one in part}
    return {one.names[0]: share.rows[one].view(kinds[one.names[0]]).view(one.shape) for one in part}


@pytest.mark.parametrize("threads", [1, 4])
def test_threads_do_not_change_a_byte(object_store: ObjectStore, threads: int) -> None:
    """Tensors of several pieces each, so that the pieces of a part are coded at the same time."""
    generator = torch.Generator().manual_seed(1)
    weights_of = {f"w{number}": torch.randn(3_000_000, generator=generator).bfloat16() for number in range(3)}
    maker = PartMaker(object_store, Weights(chunk_bytes=1 << 18, coding="small"), threads=threads)
    maker.take(Share.whole(weights_of, "bfloat16", 9 << 20))
    stored = [object_store.get(part.part.key) for part in maker.make(RouteOrder(Version(0, threads))) if part]
    assert stored == [shard.data for shard in delta.encode({}, weights_of, None, delta.Settings(shard_bytes=9 << 20))]
    assert len(stored) > 1


def test_the_changes_that_are_kept_never_outweigh_the_weights(object_store: ObjectStore) -> None:
    learner = weight_publisher(object_store, skips=(2, 4, 8))
    for number, tensors in enumerate(history(9, share=0.2)):
        learner.publish(Version(0, number), tensors, "float32")
        learner.further(Version(0, number))
        kept = [undo.nbytes for changed in learner._makers._changes for undo in changed.values()]  # type: ignore[attr-defined]
        assert sum(kept) <= sum(tensor.nbytes for tensor in tensors.values())


@pytest.mark.slow
def test_readers_see_each_version_whole_while_the_learner_publishes(object_store: ObjectStore) -> None:
    versions = history(8)

    def learn() -> None:
        learner = weight_publisher(object_store, anchor_every=3)
        for number, tensors in enumerate(versions):
            learner.publish(Version(0, number), tensors, "float32")
            learner.further(Version(0, number))
            weights.prune(object_store, Version(0, number))

    def look() -> bool:
        published = weights.latest(object_store, VERIFIER)
        with suppress(MissingObject):  # pruned while a slow reader was at it: it looks again
            if published:
                assert same(fetch(object_store, published), versions[published.version.number])
                return True
        return False

    with ThreadPoolExecutor(1) as pool:
        learner = pool.submit(learn)
        while not learner.done():
            look()
        learner.result()
    assert look(), "the last version"


def test_what_the_store_refuses_is_one_clear_error_and_no_version(
    object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner = weight_publisher(object_store)
    learner.publish(Version(0, 0), model(), "float32")
    put = ObjectStore.put

    def full(self: ObjectStore, key: str, data: bytes, once: bool = False) -> bool:
        if key.endswith(".part"):
            raise ServiceError(publisher.Problem("store", "is full", "make room"))
        return put(self, key, data, once)

    with monkeypatch.context() as patched:
        patched.setattr(ObjectStore, "put", full)
        with pytest.raises(ServiceError, match="is full"):
            learner.publish(Version(0, 1), drifted(model(), 1), "float32")
    assert weights.latest(object_store, VERIFIER) == publish(object_store, model())
    again = learner.publish(Version(0, 1), drifted(model(), 1), "float32")
    assert same(fetch(object_store, again), drifted(model(), 1))
