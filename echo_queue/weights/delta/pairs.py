"""The same stretch of a tensor in two versions, and where they differ; on the CPU, or on the device that holds both.

Only what has changed leaves a device, beside the new codes themselves, which the digest needs.
"""

from typing import TYPE_CHECKING, Protocol

import numpy as np

from echo_queue.weights.delta import ranked
from echo_queue.weights.delta.codes import Codes, on_host
from echo_queue.weights.delta.compiled import U, compiled
from echo_queue.weights.delta.gaps import Numbers

if TYPE_CHECKING:
    from torch import Tensor

BLOCK = 1 << 12
"""Words compared at a time: what is written in between stays in the processor's nearest cache."""


class Pair(Protocol):
    def changes(self, limit: float) -> tuple[Numbers, Codes] | None:
        """Ascending positions and differences (new − base) of what has changed; None if it is more than `limit`."""
        ...

    def differences(self) -> Codes:
        """Of all elements."""
        ...

    def base(self, groups: Numbers) -> tuple[Numbers, Codes]:
        """The base's codes of at least these ascending groups of eight, and what the groups are called there."""
        ...


def pair(base: "Tensor", new: "Tensor", new_codes: Codes) -> Pair:
    """Of `flat` tensors. `new_codes` is `new` on the CPU."""
    if base.device == new.device and new.device.type != "cpu":
        return DevicePair(base, new)
    return HostPair(on_host(base), new_codes)


class HostPair:
    def __init__(self, base: Codes, new: Codes) -> None:
        self._base, self._new = base, new

    def changes(self, limit: float) -> tuple[Numbers, Codes] | None:
        room = len(self._new) + 8
        places, differences = np.empty(room, np.uint32), np.empty(room, self._new.dtype)
        words = len(self._new) // (8 // self._new.itemsize) * 8 // self._new.itemsize
        base, new = (codes[:words].view(np.uint64) for codes in (self._base, self._new))
        found = _changes(self._base, self._new, base, new, U(limit), places, differences)
        return None if found > limit else (places[:found], differences[:found])

    def differences(self) -> Codes:
        return self._new - self._base

    def base(self, groups: Numbers) -> tuple[Numbers, Codes]:
        return groups, self._base


class DevicePair:
    def __init__(self, base: "Tensor", new: "Tensor") -> None:
        self._base, self._new = base, new

    def changes(self, limit: float) -> tuple[Numbers, Codes] | None:
        places = (self._new != self._base).nonzero().view(-1)
        if len(places) > limit:
            return None
        differing = self._new[places] - self._base[places]
        return places.cpu().numpy().astype(np.uint32), on_host(differing)

    def differences(self) -> Codes:
        return on_host(self._new - self._base)

    def base(self, groups: Numbers) -> tuple[Numbers, Codes]:
        """Lanes beyond the end are the last code."""
        import torch

        first = torch.from_numpy(groups.astype(np.int64)).to(self._base.device).view(-1, 1) * ranked.EIGHT
        lanes = torch.arange(ranked.EIGHT, device=self._base.device)
        rows = on_host(self._base[(first + lanes).clamp_(max=len(self._base) - 1).view(-1)])
        return np.arange(len(groups), dtype=np.uint32), rows


@compiled
def _changes(
    base: Codes, new: Codes, base_words: Codes, new_words: Codes, limit: U, places: Numbers, differences: Codes
) -> int:
    """How many there are, or some number above `limit`; `places` and `differences` have room for all and one more.

    Words of eight bytes are compared first, as vectors; then those that differ are listed, then their elements, both
    without branches that a processor could foresee wrongly.
    """
    lanes, words, found = U(8 // new.itemsize), U(len(new_words)), U(0)
    differ, unequal = np.zeros(BLOCK, np.uint8), np.empty(BLOCK + 1, np.uint32)
    eights = differ.view(np.uint64)
    for start in range(U(0), words, U(BLOCK)):
        count, listed = min(U(BLOCK), words - start), U(0)
        for place in range(count):
            differ[place] = base_words[start + place] != new_words[start + place]
        for eight in range((count + U(7)) >> U(3)):
            if eights[eight]:
                for place in range(eight << U(3), (eight + U(1)) << U(3)):
                    unequal[listed] = place
                    listed += U(differ[place])
        for index in range(listed):
            first = (start + U(unequal[index])) * lanes
            for place in range(first, first + lanes):
                places[found] = place
                differences[found] = new[place] - base[place]
                found += U(new[place] != base[place])
        if found > limit:
            return int(found)
        differ[:] = 0
    for place in range(words * lanes, U(len(new))):
        places[found] = place
        differences[found] = new[place] - base[place]
        found += U(new[place] != base[place])
    return int(found)
