"""Compares the digests of decoded pieces of tensors with the digests of whole tensors in a manifest.

A route has each element once, which bounds the work for it, however many shards it has.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence

from echo_queue.weights.delta import BadDelta, Piece
from echo_queue.weights.manifest import TensorInfo, tensor_digest


class TensorCheck:
    """Collects the pieces of a route, in any order."""

    def __init__(self) -> None:
        self._pieces: dict[str, list[Piece]] = {}
        self._elements: Counter[str] = Counter()

    def add(self, pieces: Iterable[Piece]) -> None:
        """Adds a shard's pieces, before they are made. Raises `BadDelta` if the route has some of them twice."""
        for piece in pieces:
            name = piece.names[0]
            self._elements[name] += piece.count
            if self._elements[name] > piece.elements:
                raise BadDelta(f"delta of {name}", "its route has more elements than the tensor has")
            self._pieces.setdefault(piece.names[0], []).append(piece)

    def differing(self, tensors: Sequence[TensorInfo]) -> str | None:
        """Returns the first of `tensors` that its pieces do not cover, or not with its digest; None if all do."""
        return next((info.name for info in tensors if not self._matches(info)), None)

    def _matches(self, info: TensorInfo) -> bool:
        pieces = sorted(self._pieces.get(info.name, ()), key=lambda piece: piece.start)
        ends = [piece.start + piece.count for piece in pieces]
        tiled = [0, *ends] == [*(piece.start for piece in pieces), math.prod(info.shape)]
        return tiled and tensor_digest(piece.digest for piece in pieces) == info.digest
