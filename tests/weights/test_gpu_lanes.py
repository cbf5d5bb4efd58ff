"""Threads read a GPU's memory through lanes, in order. The GPU is a stand-in, which does late what it was given."""

from collections.abc import Iterator
from contextlib import suppress

import pytest
import torch
from torch import Tensor

from echo_queue.config import Weights
from echo_queue.connections.storage.object_store import ObjectStore
from echo_queue.records import Version
from echo_queue.weights import gpu_lanes
from echo_queue.weights.delta.codes import flat, on_host
from echo_queue.weights.layout import Share
from echo_queue.weights.manifest import PIECE_BYTES
from echo_queue.weights.part_makers import PartMaker, RouteOrder
from tests.learner.gpu_stand_in import GPU, OnGpu, StandInEvent, StandInStream, stand_in


@pytest.fixture(autouse=True)
def _gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with stand_in(monkeypatch):
        yield


def row(*values: int) -> Tensor:
    return flat(torch.tensor(values, dtype=torch.int32))


def test_codes_are_read_once_their_copy_is_complete() -> None:
    first, second = OnGpu.of(row(1, 2, 3)), OnGpu.of(row(4, 5))
    with gpu_lanes.reading([first])() as read:
        assert read(first).tolist() == [1, 2, 3]
        assert read(second).tolist() == [4, 5]
        assert read(row(6)).tolist() == [6], "what is on the CPU in a share of a GPU"


def test_rows_are_read_after_what_the_stream_of_the_caller_does_to_them() -> None:
    computed, late = row(1, 2, 3), StandInStream(GPU)
    late.give(lambda: computed.mul_(10))
    with torch.cuda.stream(late):  # type: ignore[arg-type]
        lend = gpu_lanes.reading([OnGpu.of(computed)])
    with lend() as read:
        assert read(OnGpu.of(computed)).tolist() == [10, 20, 30]


def test_a_lane_is_lent_again_once_all_that_it_was_given_has_ended() -> None:
    """Also after an error, for the memory that its copies write is pinned, and is used again."""
    room, source, lanes = torch.zeros(3, dtype=torch.int32), OnGpu.of(row(1, 2, 3)), gpu_lanes.Lanes(GPU)
    written = StandInEvent()
    written.record()
    with suppress(ZeroDivisionError), lanes.lend(written):  # type: ignore[arg-type]
        room.copy_(source, non_blocking=True)
        assert not room.any(), "the copy is late"
        raise ZeroDivisionError
    assert room.tolist() == [1, 2, 3]


def test_lanes_are_made_once_for_the_threads_that_read_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    made = list[int]()
    empty = torch.empty

    def pinned(size: int, *, pin_memory: bool = False, dtype: torch.dtype) -> Tensor:
        if pin_memory:
            made.append(size)
        return empty(size, dtype=dtype)

    monkeypatch.setattr(torch, "empty", pinned)
    one = OnGpu.of(row(1))
    for _ in range(3):
        lend = gpu_lanes.reading([one])
        with lend(), lend() as read:
            assert read(one).tolist() == [1]
    assert made == [PIECE_BYTES, PIECE_BYTES]


@pytest.mark.parametrize("s3_server", ["rclone"], indirect=True)
def test_what_lies_on_a_gpu_is_published_as_the_same_parts(object_store: ObjectStore) -> None:
    draw = torch.Generator().manual_seed(0)
    versions = [{"b": torch.randn(1_300_000, generator=draw), "a": torch.randn(70, generator=draw)}]
    versions.append({name: tensor + (tensor > 1.5) for name, tensor in versions[0].items()})
    on_cpu, on_gpu = (PartMaker(object_store, Weights(), threads=2) for _ in range(2))
    for number, version in enumerate(versions):
        order = RouteOrder(Version(1, number), Version(1, number - 1) if number else None)
        plain = Share.whole(version, "float32", 1 << 20)
        there = Share(plain.layout, {one: OnGpu.of(row) for one, row in plain.rows.items()})
        found = []
        for maker, share in ((on_cpu, plain), (on_gpu, there)):
            maker.take(share)
            found.append([part and (part.part, part.digests) for part in maker.make(order)])
            maker.keep(1)
        assert found[0] == found[1] and len(found[0]) > 1
    assert on_gpu._kept is not None and not any(row.is_cuda for row in on_gpu._kept.rows.values())
    assert all(
        (on_host(mine) == on_host(its)).all()
        for mine, its in zip(on_gpu._kept.rows.values(), plain.rows.values(), strict=True)
    )
