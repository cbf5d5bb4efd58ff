"""Cuts tensors into stretches, one for each piece, and stretches into shards. Only names, types and shapes matter."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from echo_queue.weights.delta.codes import dtype_name

if TYPE_CHECKING:
    from torch import Tensor

WORD = 8
"""Pieces begin at a multiple of so many elements, and so at a whole word."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Elements `start … start + count − 1` of a flattened tensor, `width` bytes each.

    `names`: the tensor's own, then those tied to it. `shape`: of the whole tensor.
    """

    names: tuple[str, ...]
    dtype: str
    shape: tuple[int, ...]
    width: int
    start: int
    count: int

    @property
    def nbytes(self) -> int:
        """The bytes of its elements."""
        return self.count * self.width


def stretches(names: tuple[str, ...], tensor: "Tensor", piece_bytes: int) -> Iterator[Stretch]:
    """Yields a tensor's stretches: at least one, even if it is empty, so that each tensor is named."""
    width, total, shape = tensor.element_size(), math.prod(tensor.shape), tuple(tensor.shape)
    step = max(1, piece_bytes // width // WORD) * WORD
    for start in range(0, max(1, total), step):
        yield Stretch(names, dtype_name(tensor), shape, width, start, min(step, total - start))


def shards(cut: Iterable[Stretch], shard_bytes: int) -> Iterator[tuple[Stretch, ...]]:
    """Groups stretches, in order, into shards of at most `shard_bytes`; each has at least one."""
    together: list[Stretch] = []
    size = 0
    for stretch in cut:
        if together and size + stretch.nbytes > shard_bytes:
            yield tuple(together)
            together, size = [], 0
        together.append(stretch)
        size += stretch.nbytes
    if together:
        yield tuple(together)
