"""Compares the same stretch of a tensor in two versions, on the CPU or on the device that holds both.

Only changes leave a device, beside the new codes themselves, which the digest needs.
"""

from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from echo_queue.weights.delta import classes
from echo_queue.weights.delta.classes import KEYS, Classes
from echo_queue.weights.delta.codes import Codes, on_host
from echo_queue.weights.delta.compiled import U, compiled
from echo_queue.weights.delta.gaps import Numbers

if TYPE_CHECKING:
    from torch import Tensor

Words = NDArray[np.uint64]

BLOCK = 1 << 12
"""The number of words compared at a time: intermediate results stay in the processor's nearest cache."""


class Pair(Protocol):
    """A stretch of a tensor in two versions, the base and the new one."""

    def changes(self, limit: float) -> tuple[Numbers, Codes] | None:
        """Returns ascending positions and differences (new − base) of the changes; None if they exceed `limit`."""
        ...

    def differences(self) -> Codes:
        """Returns the differences (new − base) of all elements."""
        ...

    def classes(self, positions: Numbers, differences: Codes) -> Classes:
        """Returns the changes, as `changes` lists them, in class order."""
        ...


def pair(base: "Tensor", new: "Tensor", new_codes: Codes) -> Pair:
    """Pairs two `flat` tensors. `new_codes`: `new` on the CPU."""
    if base.device == new.device and new.device.type != "cpu":
        return DevicePair(base, new)
    return HostPair(on_host(base), new_codes)


class HostPair:
    """A pair on the CPU."""

    def __init__(self, base: Codes, new: Codes) -> None:
        self._base, self._new = base, new

    def changes(self, limit: float) -> tuple[Numbers, Codes] | None:
        room, lanes = len(self._new) + 1, 8 // self._new.itemsize
        whole = len(self._new) // lanes * lanes
        places, differences = np.empty(room, np.uint32), np.empty(room, self._new.dtype)
        codes = self._base, self._new
        words = self._base[:whole].view(np.uint64), self._new[:whole].view(np.uint64)
        found = _changes(words, codes, U(limit), (places, differences))
        return None if found > limit else (places[:found], differences[:found])

    def differences(self) -> Codes:
        return self._new - self._base

    def classes(self, positions: Numbers, differences: Codes) -> Classes:
        return classes.sort(positions, differences, self._base)


class DevicePair:
    """A pair on one device."""

    def __init__(self, base: "Tensor", new: "Tensor") -> None:
        self._base, self._new = base, new

    def changes(self, limit: float) -> tuple[Numbers, Codes] | None:
        places = (self._new != self._base).nonzero().view(-1)
        if len(places) > limit:
            return None
        differing = self._new[places] - self._base[places]
        return on_host(places.int()), on_host(differing)

    def differences(self) -> Codes:
        return on_host(self._new - self._base)

    def classes(self, positions: Numbers, differences: Codes) -> Classes:
        """Does what `Pair.classes` does. The device sorts all elements; only keys and ranks of changes leave it."""
        import torch

        shift, mask = classes.shift_and_mask(self._base.element_size())
        keys = (self._base >> shift).bitwise_and_(mask).to(torch.uint8)
        in_order, order = keys.sort(stable=True)
        starts = torch.searchsorted(in_order, torch.arange(KEYS, dtype=torch.uint8, device=keys.device))
        ranks = torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=keys.device))
        chosen = torch.from_numpy(positions.astype(np.int64)).to(keys.device)
        changed = keys[chosen]
        own = ranks[chosen] - starts[changed.long()]
        return classes.in_class_order(on_host(changed), on_host(own.int()), differences)


@compiled
def _changes(words: tuple[Words, Words], codes: tuple[Codes, Codes], limit: U, found: tuple[Numbers, Codes]) -> int:
    """Lists the changes of base and new, given as codes and as words; returns their number, or one above `limit`.

    `found` (places and differences) must have room for all changes and one more. Words are compared as vectors; then
    eights of them that differ are listed, then those words, then their elements: no branch can be mispredicted.
    """
    (base_words, new_words), (base, new), (places, differences) = words, codes, found
    lanes, end, count = U(8 // new.itemsize), U(len(new_words)), U(0)
    differ, eights, unequal = (
        np.empty(BLOCK, np.uint8),
        np.empty(BLOCK // 8 + 1, np.uint32),
        np.empty(BLOCK + 1, np.uint32),
    )
    differ_in_eights = differ.view(np.uint64)
    for start in range(U(0), end, U(BLOCK)):
        differ[:] = 0
        for place in range(min(U(BLOCK), end - start)):
            differ[place] = base_words[start + place] != new_words[start + place]
        listed = U(0)
        for eight in range(U(BLOCK // 8)):
            eights[listed] = eight
            listed += U(differ_in_eights[eight] != U(0))
        occupied, listed = listed, U(0)
        for index in range(occupied):
            first = U(eights[index]) << U(3)
            for place in range(first, first + U(8)):
                unequal[listed] = place
                listed += U(differ[place])
        for index in range(listed):
            first = (start + U(unequal[index])) * lanes
            for place in range(first, first + lanes):
                difference = new[place] - base[place]
                places[count], differences[count] = place, difference
                count += U(difference != 0)
        if count > limit:
            return int(count)
    for place in range(end * lanes, U(len(new))):
        places[count], differences[count] = place, new[place] - base[place]
        count += U(new[place] != base[place])
    return int(count)
