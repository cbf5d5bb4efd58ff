"""Promises of the choice between the codings of deltas: it follows link and processors, and no byte is lost by it."""

from collections.abc import Iterator
from itertools import count
from types import SimpleNamespace

import pytest
import torch

from echo_queue.connections.storage.object_store import ObjectStore
from echo_queue.records import Version
from echo_queue.weights import coding
from echo_queue.weights.coding import DeltaCoding, Word, chosen
from tests.weights.published_weights import fetch, manifest_of, same, weight_publisher

VALUES = 1 << 19
STEP = 2e-5


@pytest.mark.parametrize(
    ("was", "uploading_s", "coding_s", "threads", "then"),
    [
        ("fast", 60.0, 1.0, 1, "small"),
        ("fast", 1.0, 1.0, 1, "fast"),
        ("fast", 5.0, 1.0, 1, "fast"),
        ("fast", 5.0, 1.0, 2, "small"),
        ("small", 60.0, 3.0, 1, "small"),
        ("small", 1.0, 3.0, 1, "fast"),
    ],
)
def test_the_smaller_coding_is_taken_where_the_link_is_slower_than_the_processors(
    was: Word, uploading_s: float, coding_s: float, threads: int, then: Word
) -> None:
    assert chosen(was, uploading_s, coding_s, threads) == then


def test_the_same_link_and_processors_are_judged_alike_by_either_coding() -> None:
    for uploading_s in (0.1, 1.0, 5.9, 6.1, 10.0, 100.0):
        by_small = chosen("small", uploading_s * coding.SMALL_BYTES, coding.SMALL_TIME, 1)
        assert chosen("fast", uploading_s, 1.0, 1) == by_small


def versions(number: int) -> Iterator[dict[str, torch.Tensor]]:
    """Yields versions of one tensor. As an update of training does, each step changes small values more often."""
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(VALUES, generator=generator)
    for _ in range(number):
        yield {"w": values.clone()}
        values += torch.randn(VALUES, generator=generator) * STEP


@pytest.mark.parametrize(
    ("key", "s_per_upload", "then"), [("auto", 60, "small"), ("auto", 0, "fast"), ("fast", 60, "fast")]
)
def test_a_slow_link_makes_the_next_deltas_smaller(
    object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch, key: str, s_per_upload: int, then: Word
) -> None:
    clock = SimpleNamespace(monotonic=count(0, s_per_upload).__next__, thread_time=lambda: 0.01)
    monkeypatch.setattr(coding, "time", clock)
    learner, sizes = weight_publisher(object_store, coding=key, skips=(), part_bytes=4 * VALUES), []
    for number, tensors in enumerate(versions(4)):
        published = learner.publish(Version(0, number), tensors, "bfloat16")
        assert same(fetch(object_store, published), tensors, torch.bfloat16)
        sizes.append(manifest_of(object_store, published).route.size)
    _, first, second, third = sizes
    assert (second < 0.9 * first) == (third < 0.9 * first) == (then == "small")


def test_uploads_of_less_than_a_second_are_nothing_to_save() -> None:
    assert chosen("fast", 0.9, 0.001, 1) == "fast"
    assert chosen("fast", 1.1, 0.001, 1) == "small"


def test_uploads_beside_one_another_are_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(monotonic=iter([10.0, 13.0]).__next__, thread_time=iter([0.0, 0.5]).__next__)
    monkeypatch.setattr(coding, "time", clock)
    told = DeltaCoding("auto", 1)
    with told.timed():
        pass
    with told.on_its_way(), told.on_its_way():
        pass
    told.choose()
    assert told.word == "fast"
