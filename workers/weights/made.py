"""A tensor's digest: BLAKE3 over the digests of its pieces, of a fixed number of bytes each (docs/weights.md)."""

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from blake3 import blake3

from echo_queue.weights.delta import Piece
from echo_queue.weights.delta.codes import flat, on_host
from echo_queue.weights.manifest import TensorInfo, tensor_digest

if TYPE_CHECKING:
    from torch import Tensor

EIGHT = 8
"""Elements: a piece is a multiple of it, except a tensor's last."""


def digest_of(tensor: "Tensor", piece_bytes: int) -> str:
    """Of a tensor on any device, of which one piece at a time is brought to the host."""
    row = flat(tensor)
    step = max(1, piece_bytes // row.element_size() // EIGHT) * EIGHT
    pieces = (on_host(row[start : start + step]) for start in range(0, max(1, len(row)), step))
    return tensor_digest(blake3(piece.view("u1").data).hexdigest() for piece in pieces)


class Digests:
    """What was made of a version's tensors, piece by piece, in any order."""

    def __init__(self) -> None:
        self._pieces: dict[str, list[Piece]] = {}

    def add(self, pieces: Iterable[Piece]) -> None:
        for piece in pieces:
            self._pieces.setdefault(piece.names[0], []).append(piece)

    def differing(self, tensors: Sequence[TensorInfo]) -> str | None:
        """The first of `tensors` that was not made whole and as its digest says."""
        return next((info.name for info in tensors if not self._matches(info)), None)

    def _matches(self, info: TensorInfo) -> bool:
        pieces = sorted(self._pieces.get(info.name, ()), key=lambda piece: piece.start)
        ends = [piece.start + piece.count for piece in pieces]
        tiled = [0, *ends] == [*(piece.start for piece in pieces), math.prod(info.shape)]
        return tiled and tensor_digest(piece.digest for piece in pieces) == info.digest
