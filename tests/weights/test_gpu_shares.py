"""A share whose rows lie on a GPU in part, as those of LoRA do. The GPU is a stand-in."""

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
def pinned(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The bytes for which pinned memory was taken."""
    found = list[int]()
    empty = torch.empty

    def taken(size: int, *, pin_memory: bool = False, **options: Any) -> Tensor:
        if pin_memory:
            found.append(size)
        return empty(size, **options)

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


def test_rows_of_a_gpu_go_into_pinned_memory_that_is_used_again(pinned: list[int]) -> None:
    before, Stream.waits = None, 0
    for value in (1.0, 2.0):
        share = adapters(value)
        kept = part_makers._on_host(share, before)
        assert not any(row.is_cuda for row in kept.rows.values())
        assert all(torch.equal(row, now) for row, now in zip(plain(kept), plain(share), strict=True))
        if before is not None:
            assert plain(kept)[1].data_ptr() == plain(before)[1].data_ptr()
        before = kept
    assert len(pinned) == 1
    assert Stream.waits == 2


def test_a_share_of_many_pieces_takes_few_pieces_of_pinned_memory(pinned: list[int]) -> None:
    whole = Share.whole({str(number): torch.full((512,), float(number)) for number in range(200)}, "float32", 1 << 20)
    share = Share(whole.layout, {one: row.as_subclass(OnGpu) for one, row in whole.rows.items()})
    kept = part_makers._on_host(share, None)
    assert all(torch.equal(row, now) for row, now in zip(plain(kept), plain(share), strict=True))
    assert len(pinned) <= 20
    assert part_makers._on_host(share, kept).rows == kept.rows


def test_a_share_on_the_cpu_is_kept_as_it_is() -> None:
    on_cpu = Share.whole({"a": torch.zeros(6)}, "float32", 1 << 20)
    assert part_makers._on_host(on_cpu, None) is on_cpu
