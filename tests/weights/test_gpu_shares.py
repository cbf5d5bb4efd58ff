"""A share whose rows lie on a GPU in part, as those of LoRA do. The GPU is a stand-in."""

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor

from echo_queue.weights import part_makers
from echo_queue.weights.layout import Share

GPU = torch.device("cuda", 1)


class OnGpu(Tensor):
    """A tensor of a CPU that says that it is on a GPU."""

    is_cuda = property(lambda _self: True)  # type: ignore[assignment]
    device = property(lambda _self: GPU)  # type: ignore[assignment]


class Stream:
    device, waits = GPU, 0

    def synchronize(self) -> None:
        Stream.waits += 1


@pytest.fixture
def pinned(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The shapes for which pinned memory was taken."""
    found: list[tuple[int, ...]] = []
    empty = torch.empty

    def taken(shape: tuple[int, ...], *, pin_memory: bool = False, **options: Any) -> Tensor:
        if pin_memory:
            found.append(tuple(shape))
        return empty(shape, **options)

    monkeypatch.setattr(torch, "empty", taken)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _device: Stream())
    return found


def adapters(value: float) -> Share:
    """The description of LoRA's adapters, which is on the CPU, comes first in a share."""
    whole = Share.whole({"a": torch.full((6,), value), "lora": torch.arange(5, dtype=torch.uint8)}, "float32", 1 << 20)
    rows = sorted(whole.rows.items(), key=lambda row: row[0].names, reverse=True)
    return Share(whole.layout, {one: row if one.names == ("lora",) else row.as_subclass(OnGpu) for one, row in rows})


def plain(share: Share) -> list[Tensor]:
    return [row.as_subclass(Tensor) for row in share.rows.values()]


def test_rows_of_a_gpu_go_into_pinned_memory_that_is_used_again(pinned: list[tuple[int, ...]]) -> None:
    before, Stream.waits = None, 0
    for value in (1.0, 2.0):
        share = adapters(value)
        kept = part_makers._on_host(share, before)
        assert not any(row.is_cuda for row in kept.rows.values())
        assert all(torch.equal(row, now) for row, now in zip(plain(kept), plain(share), strict=True))
        if before is not None:
            assert plain(kept)[1].data_ptr() == plain(before)[1].data_ptr()
        before = kept
    assert pinned == [(6,)]
    assert Stream.waits == 2


def test_threads_work_on_the_stream_of_the_rows_that_are_on_a_gpu(pinned: list[tuple[int, ...]]) -> None:
    assert part_makers._stream_of(adapters(1.0)) is not nullcontext
    on_cpu = Share.whole({"a": torch.zeros(6)}, "float32", 1 << 20)
    assert part_makers._stream_of(on_cpu) is nullcontext
    assert part_makers._on_host(on_cpu, None) is on_cpu
