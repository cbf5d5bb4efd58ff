"""Copies of tensors lie in slabs whose sizes torch does not round up."""

from itertools import pairwise
from typing import Any

import pytest
import torch

from echo_queue.weights.host_memory import ALIGNMENT, SLAB_BYTES, fill, plan, rooms_for

MASTER_AND_MOMENTS, LAYERS = 3, 36
QWEN3_8B = [
    4 * elements
    for _ in range(MASTER_AND_MOMENTS)
    for elements in [
        *[151_936 * 4_096] * 2,
        *[4_096 * 12_288] * 3 * LAYERS,
        *[4_096 * 4_096, 4_096 * 1_024] * 2 * LAYERS,
        *[4_096, 4_096, 128, 128] * LAYERS,
        4_096,
    ]
] + [4] * 399
"""The bytes of all tensors of a checkpoint: masters, both moments, and the number of steps of each master."""
CASES = {
    "8B": QWEN3_8B,
    "8B, one of eight ranks": [size // 8 for size in QWEN3_8B if size > 4],
    "small": [4 * 1_000, 4 * 999, 12, 4, 0] * 7,
    "nothing": [],
}


@pytest.mark.parametrize("name", CASES)
def test_every_tensor_has_bytes_of_its_own_in_a_slab(name: str) -> None:
    sizes = CASES[name]
    slabs, places = plan(sizes)
    assert all(size & (size - 1) == 0 for size in slabs), "powers of two, which torch does not round up"
    assert len(places) == len(sizes)
    for slab, bytes_ in enumerate(slabs):
        inside = sorted((first, size) for (at, first), size in zip(places, sizes, strict=True) if at == slab)
        assert all(first % ALIGNMENT == 0 for first, _ in inside)
        assert all(first + size <= after for (first, size), (after, _) in pairwise(inside))
        assert inside[-1][0] + inside[-1][1] <= bytes_


@pytest.mark.parametrize(("name", "most"), [("8B", 1.02), ("8B, one of eight ranks", 1.05), ("small", 1.15)])
def test_slabs_are_hardly_larger_than_what_lies_in_them(name: str, most: float) -> None:
    sizes = CASES[name]
    alone = sum(1 << (size - 1).bit_length() for size in sizes if size)
    assert sum(plan(sizes).slabs) <= most * sum(sizes)
    assert name == "small" or alone > 1.3 * sum(sizes), "what torch takes for one allocation each"


def test_a_tensor_larger_than_a_slab_shares_one_of_its_own_size() -> None:
    assert plan([SLAB_BYTES + 1, SLAB_BYTES // 2, SLAB_BYTES // 2 - ALIGNMENT]).slabs == [2 * SLAB_BYTES]


@pytest.mark.parametrize("pinned", [True, False])
def test_slabs_are_pinned_if_wanted(pinned: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    empty, taken = torch.empty, set()

    def take(size: int, *, pin_memory: bool, **options: Any) -> torch.Tensor:
        taken.add(pin_memory)
        return empty(size, **options)

    monkeypatch.setattr(torch, "empty", take)
    rooms_for([torch.zeros(3), torch.zeros(5)], pinned=pinned)
    assert taken == {pinned}


def test_a_room_of_another_type_has_rounded_values() -> None:
    tensor = torch.randn(3, 5, requires_grad=True)
    (room,) = rooms_for([torch.empty(3, 5, dtype=torch.bfloat16, device="meta")], pinned=False)
    fill([room], [tensor])
    assert torch.equal(room, tensor.detach().bfloat16()) and not room.requires_grad


def test_rooms_have_the_shapes_and_types_of_the_tensors() -> None:
    tensors = [
        torch.randn(3, 5), torch.tensor(7.0), torch.arange(5, dtype=torch.uint8), torch.randn(2, 3).bfloat16(),
        torch.arange(4), torch.empty(0, 3),
    ]  # fmt: skip
    rooms = rooms_for(tensors, pinned=False)
    fill(rooms, tensors)
    for room, tensor in zip(rooms, tensors, strict=True):
        assert room.dtype == tensor.dtype and room.is_contiguous() and torch.equal(room, tensor)
