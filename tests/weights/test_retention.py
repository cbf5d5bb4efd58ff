"""Promises of what stays in the store, and of what is latest."""

import pytest
import torch

from echo_queue import weights
from echo_queue.connections.storage.object_store import MissingObject, ObjectStore
from echo_queue.queue.staleness_rules import abandoned
from echo_queue.records import Version
from echo_queue.weights.catalogue import catalogue
from echo_queue.weights.manifest import FOLDER, manifest_key
from echo_queue.weights.retention import expendable
from tests.weights.published_weights import (
    SMALL,
    VERIFIER,
    fetch,
    history,
    publish,
    publish_all,
    same,
    weight_publisher,
)

ONE = {"w": torch.ones(1)}


def test_the_latest_is_found_by_listing_and_skips_what_a_fork_abandoned(object_store: ObjectStore) -> None:
    assert weights.latest(object_store, VERIFIER) is None
    old = [publish(object_store, ONE, Version(0, number)) for number in (0, 4, 8)]
    assert weights.latest(object_store, VERIFIER) == old[2]
    assert weights.latest(object_store, VERIFIER, {1: Version(0, 5)}) == old[1]
    new = publish(object_store, ONE, Version(1, 6))
    assert weights.latest(object_store, VERIFIER, {1: Version(0, 5)}) == new


def test_a_version_whose_publication_was_cut_off_is_not_there(object_store: ObjectStore) -> None:
    whole = publish(object_store, ONE, Version(0, 1))
    object_store.put(f"weights/0000/00000002/full/{'0' * 32}.part", b"half")
    object_store.put(manifest_key(Version(0, 3)), object_store.get(whole.manifest)[:40])
    assert weights.latest(object_store, VERIFIER) == whole


def test_pruning_leaves_the_newest_what_lies_within_s_and_two_ways_there(object_store: ObjectStore) -> None:
    versions = history(11)
    published = publish_all(object_store, versions, anchor_every=4, part_bytes=200_000)
    assert weights.prune(object_store, Version(0, 11), s=2) == [Version(0, number) for number in range(4)]
    for number in (4, 6, 11):
        assert same(fetch(object_store, published[number]), versions[number])
    with pytest.raises(MissingObject):
        fetch(object_store, published[3])
    assert not list(object_store.list(f"{FOLDER}0000/00000003/"))


def test_what_is_leased_stays_with_its_way(object_store: ObjectStore) -> None:
    versions = history(9)
    published = publish_all(object_store, versions, anchor_every=4, part_bytes=200_000)
    assert weights.prune(object_store, Version(0, 9), leased={Version(0, 2)}) == []
    assert same(fetch(object_store, published[2]), versions[2])


def test_pruning_makes_versions_invisible_before_it_takes_their_parts(
    object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish_all(object_store, history(9), anchor_every=2, part_bytes=200_000)
    deleted: list[str] = []
    monkeypatch.setattr(ObjectStore, "delete", lambda self, keys: deleted.extend(keys))
    assert weights.prune(object_store, Version(0, 9))
    order = [
        ("manifest.json", "route.json").index(key.rpartition("/")[2]) if key.endswith("json") else 2 for key in deleted
    ]
    assert order == sorted(order)
    assert set(order) == {0, 1, 2}


def test_unfinished_versions_go_once_a_newer_one_is_out(object_store: ObjectStore) -> None:
    object_store.put(f"weights/0000/00000002/full/{'0' * 32}.part", b"half")
    object_store.put(f"weights/0001/00000007/full/{'0' * 32}.part", b"half")
    publish(object_store, ONE, Version(1, 5))
    assert weights.prune(object_store, Version(1, 5)) == [Version(0, 2)]


def test_what_is_not_certainly_whole_is_no_floor(object_store: ObjectStore) -> None:
    """A full folder beside the manifest's own difference, without its document: a learner died there."""
    publish_all(object_store, history(9), anchor_every=100, part_bytes=200_000)
    object_store.put(f"weights/0000/00000006/full/{'0' * 32}.part", b"half")
    assert weights.prune(object_store, Version(0, 9)) == []


def test_a_run_of_many_versions_keeps_few(object_store: ObjectStore) -> None:
    learner, s = weight_publisher(object_store, **(SMALL | {"part_bytes": 200_000, "anchor_every": 3})), 2
    for number, tensors in enumerate(history(9)):
        learner.publish(Version(0, number), tensors, "float32")
        learner.further(Version(0, number))
        weights.prune(object_store, Version(0, number), s)
        assert len(catalogue(object_store)) <= 3 + 2 * 3 + s


def of(*numbers: int, lineage: int = 0, whole: tuple[int, ...] = ()) -> dict[Version, bool]:
    return {Version(lineage, number): number in whole for number in numbers}


@pytest.mark.parametrize(
    ("versions", "newest", "s", "gone"),
    [
        ({}, Version(0, 9), 0, []),
        (of(0, 1, 2, 3, 4, whole=(0, 1, 2, 3, 4)), Version(0, 4), 0, [(0, 0)]),
        (of(0, 1, 2, 3, 4, whole=(0, 1, 2, 3, 4)), Version(0, 4), 3, []),
        (of(0, 1, 2, 3, 4, whole=(0, 1)), Version(0, 4), 0, []),
        (of(0, 1, 2, 3, 4, whole=(0,)), Version(0, 4), 0, []),
        (of(0, 1, 2, 3, 4, whole=(0, 4)), Version(0, 4), 0, []),
        (of(0, 1, 2, 3, 4, 5, 6, whole=(0, 4)), Version(0, 6), 0, []),
        (of(0, 1, 2, 3, 4, 6, 7, 8, whole=(0, 4, 6)), Version(0, 8), 0, [(0, 0), (0, 1), (0, 2), (0, 3)]),
        (of(0, 8, 16, whole=(0, 8, 16)), Version(0, 16), 0, []),
        (of(8, 9, whole=(8,)) | of(5, 6, 7, lineage=1, whole=(5,)), Version(1, 7), 9, [(0, 8), (0, 9)]),
        (of(8, 9, whole=(8,)) | of(5, lineage=1, whole=(5,)), Version(1, 5), 9, []),
        (of(0, 1, 2, 3, whole=(0, 1, 2, 3)) | of(0, lineage=1), Version(0, 3), 0, []),
    ],
)
def test_only_what_nobody_can_need_is_expendable(
    versions: dict[Version, bool], newest: Version, s: int, gone: list[tuple[int, int]]
) -> None:
    assert expendable(versions, newest, s) == gone


def test_a_version_survives_unless_a_later_lineage_forked_below_it() -> None:
    forks = {1: Version(0, 5), 2: Version(1, 9)}
    assert [abandoned(Version(0, 5), forks), abandoned(Version(0, 6), forks)] == [False, True]
    assert [abandoned(Version(1, 9), forks), abandoned(Version(1, 10), forks)] == [False, True]
    assert not abandoned(Version(2, 100), forks)
