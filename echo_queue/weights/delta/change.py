"""Reads a piece's streams as a change: differences to add to all codes, or to those at some positions.

A change can be undone as far as it was added, whatever the streams were.
"""

from typing import Protocol

import numpy as np

from echo_queue.weights.delta import classes, gaps, rans, symbols
from echo_queue.weights.delta.codes import Codes, unzigzag
from echo_queue.weights.delta.compiled import U, compiled
from echo_queue.weights.delta.format import Piece
from echo_queue.weights.delta.streams import Bytes, MalformedStream
from echo_queue.weights.manifest import PIECE_BYTES


class Change(Protocol):
    """Differences to a piece's codes."""

    def add(self, codes: Codes) -> None:
        """Adds the differences in place. Raises `MalformedStream`."""

    def take_back(self, codes: Codes) -> None:
        """Undoes `add`, as far as it came."""


def change_of(piece: Piece, streams: list[Bytes]) -> Change:
    """Reads the change of a piece from its expanded streams. Raises `MalformedStream`."""
    if piece.kind == "dense":
        return Dense(unzigzag(symbols.read(piece.bits, streams, piece.count)))
    if piece.kind == "gaps":
        found = gaps.count(streams[0], piece.count)
        return Sparse(streams[0], _steps(piece.bits, streams[1:], found))
    counts = classes.read_counts(streams[0], piece.count)
    found = int(counts.sum())
    within, values = rans.read(rans.Coded(*streams[1:]), found, PIECE_BYTES.bit_length(), 8 * piece.width)
    values += U(1)
    return InClasses(classes.Classes(counts, within, _changing(values.astype(f"u{piece.width}"))))


class Dense:
    """A difference for every code."""

    def __init__(self, differences: Codes) -> None:
        self._differences = differences

    def add(self, codes: Codes) -> None:
        codes += self._differences

    def take_back(self, codes: Codes) -> None:
        codes -= self._differences


class Sparse:
    """Differences at positions stored as gaps. All gaps end within the codes, and there are as many differences."""

    def __init__(self, stream: Bytes, differences: Codes) -> None:
        self._stream, self._differences = stream, differences

    def add(self, codes: Codes) -> None:
        gaps.add(self._stream, self._differences, codes)

    def take_back(self, codes: Codes) -> None:
        gaps.add(self._stream, np.negative(self._differences), codes)


class InClasses:
    """Differences at gaps within the classes of the codes, so the positions are known only once it is added.

    There are as many differences and gaps as changes.
    """

    def __init__(self, changes: classes.Classes) -> None:
        self._changes = changes
        self._positions = np.empty(0, np.uint32)

    def add(self, codes: Codes) -> None:
        self._positions = classes.positions(self._changes, codes)
        _scatter_add(self._positions, self._changes.differences, codes)

    def take_back(self, codes: Codes) -> None:
        _scatter_add(self._positions, np.negative(self._changes.differences), codes)


def _steps(bits: int, streams: list[Bytes], count: int) -> Codes:
    """Reads differences that are not 0."""
    values = symbols.read(bits, streams, count)
    values += 1
    return _changing(values)


def _changing(values: Codes) -> Codes:
    """Returns the differences that are mapped to `values`, none of which may be 0."""
    if not values.all():
        raise MalformedStream("a change by nothing")
    return unzigzag(values)


@compiled
def _scatter_add(positions: gaps.Numbers, differences: Codes, codes: Codes) -> None:
    """Adds one difference at each position. There must be as many differences as positions."""
    for place in range(U(len(positions))):
        codes[U(positions[place])] += differences[place]
