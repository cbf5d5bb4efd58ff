"""The same stretch of a tensor in two versions, and where they differ; on the CPU, or on the device that holds both.

Only what has changed leaves a device, beside the new codes themselves, which the digest needs.
"""

from typing import TYPE_CHECKING, Protocol

import numpy as np

from echo_queue.weights.delta import ranked
from echo_queue.weights.delta.codes import Codes, on_host
from echo_queue.weights.delta.ranked import Numbers

if TYPE_CHECKING:
    from torch import Tensor

BLOCK = 1 << 17
"""Elements compared at a time: what is written in between stays in the processor's cache."""


class Pair(Protocol):
    def changes(self, limit: float) -> tuple[Numbers, Codes] | None:
        """Ascending positions and differences (new − base) of what has changed; None if it is more than `limit`."""
        ...

    def differences(self) -> Codes:
        """Of all elements."""
        ...

    def base_rows(self, groups: Numbers) -> Codes:
        """As `ranked.rows` of the base."""
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
        places, values, found = [np.empty(0, np.int64)], [np.empty(0, self._new.dtype)], 0
        block = np.empty(BLOCK, self._new.dtype)
        for start in range(0, len(self._new), BLOCK):
            stop = min(start + BLOCK, len(self._new))
            np.subtract(self._new[start:stop], self._base[start:stop], out=block[: stop - start])
            block[stop - start :] = 0
            within, differing = _nonzero(block)
            found += len(within)
            if found > limit:
                return None
            within += start
            places.append(within)
            values.append(differing)
        return np.concatenate(places), np.concatenate(values)

    def differences(self) -> Codes:
        return self._new - self._base

    def base_rows(self, groups: Numbers) -> Codes:
        return ranked.rows(self._base, groups)


class DevicePair:
    def __init__(self, base: "Tensor", new: "Tensor") -> None:
        self._base, self._new = base, new

    def changes(self, limit: float) -> tuple[Numbers, Codes] | None:
        places = (self._new != self._base).nonzero().view(-1)
        if len(places) > limit:
            return None
        differing = self._new[places] - self._base[places]
        return places.cpu().numpy(), on_host(differing)

    def differences(self) -> Codes:
        return on_host(self._new - self._base)

    def base_rows(self, groups: Numbers) -> Codes:
        import torch

        first = torch.from_numpy(groups).to(self._base.device).view(-1, 1) * ranked.EIGHT
        lanes = torch.arange(ranked.EIGHT, device=self._base.device)
        return on_host(self._base[(first + lanes).clamp_(max=len(self._base) - 1)])


def _nonzero(block: Codes) -> tuple[Numbers, Codes]:
    """Where a block is not zero, and what it is there: by words of eight bytes first, then within those found."""
    lanes = 8 // block.itemsize
    words = block.view(np.uint64)
    occupied = np.flatnonzero(words != 0)
    codes = words[occupied].view(block.dtype)
    inside = np.flatnonzero(codes != 0)
    places = occupied[inside >> (lanes.bit_length() - 1)]
    places *= lanes
    places += inside & (lanes - 1)
    return places, codes[inside]
