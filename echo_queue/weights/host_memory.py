"""Host memory for copies of many tensors, which lie one after another in a few large slabs.

Torch rounds each allocation of pinned memory up to a power of two. Slabs have such sizes already, so that no more than
what is left free in them is added.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

SLAB_BYTES = 1 << 30
"""The size of most slabs. One that holds a larger tensor is larger."""
SLABS = 16
"""Smaller slabs are taken for less memory, so that there are at least about so many."""
ALIGNMENT = 64
"""Each tensor begins at a multiple of so many bytes, which suits all types."""


class Plan(NamedTuple):
    """The bytes of each slab, and of each tensor the number of its slab and its first byte there."""

    slabs: Sequence[int]
    places: Sequence[tuple[int, int]]


def plan(sizes: Sequence[int]) -> Plan:
    """Plans the slabs of tensors of these bytes: the largest first, each in the first slab that has room for it."""
    usual = min(SLAB_BYTES, _power_of_two(sum(sizes) // SLABS))
    used, room, places = list[int](), list[int](), dict[int, tuple[int, int]]()
    for number in sorted(range(len(sizes)), key=lambda number: -sizes[number]):
        size = -(-sizes[number] // ALIGNMENT) * ALIGNMENT
        slab = next((slab for slab, taken in enumerate(used) if taken + size <= room[slab]), len(used))
        if slab == len(used):
            used.append(0)
            room.append(max(usual, _power_of_two(size)))
        places[number] = slab, used[slab]
        used[slab] += size
    return Plan([_power_of_two(taken) for taken in used], [places[number] for number in range(len(sizes))])


def rooms_for(tensors: Sequence[Tensor], *, pinned: bool) -> list[Tensor]:
    """Returns host memory for a copy of each tensor, which may be on the meta device; `pinned`, for copies of a GPU's.

    What is in it is undefined.
    """
    slabs, places = plan([tensor.nbytes for tensor in tensors])
    memory = [torch.empty(size, dtype=torch.uint8, pin_memory=pinned) for size in slabs]
    return [
        memory[slab][first : first + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
        for tensor, (slab, first) in zip(tensors, places, strict=True)
    ]


def fill(rooms: Sequence[Tensor], tensors: Sequence[Tensor]) -> None:
    """Copies each tensor into its room, in the room's type. The copies are complete when it returns.

    Where the types differ, a GPU has one tensor more at a time.
    """
    for room, tensor in zip(rooms, tensors, strict=True):
        room.copy_(tensor.detach().to(room.dtype), non_blocking=True)
    for gpu in {tensor.device for tensor in tensors if tensor.is_cuda}:
        torch.cuda.current_stream(gpu).synchronize()


def _power_of_two(size: int) -> int:
    """Returns the least power of two that is at least `size`."""
    return 1 << max(0, size - 1).bit_length()
