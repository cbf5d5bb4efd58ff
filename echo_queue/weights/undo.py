"""Keeps what changed from one version to the next, so that older versions can be made again from the newest one.

A delta over several publications starts from codes that are no longer held: the newest codes minus the changes of
each publication since. That is the same sum, modulo 2^bits, in any order; so the delta that is coded from it has the
same bytes as one between two copies.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from echo_queue.weights.delta import gaps
from echo_queue.weights.delta.classes import Classes
from echo_queue.weights.delta.codes import Codes
from echo_queue.weights.delta.gaps import Numbers
from echo_queue.weights.delta.pairs import Pair
from echo_queue.weights.delta.streams import Bytes


class Undo(Protocol):
    """The way back from a stretch's codes to those of the version before."""

    @property
    def nbytes(self) -> int:
        """The memory that it takes."""
        ...

    def take_back(self, codes: Codes) -> None:
        """Changes the codes, in place, into those of the version before."""
        ...


@dataclass(frozen=True)
class SparseUndo:
    """Differences at positions, which are kept as the gaps between them: about three bytes for a bfloat16 change."""

    stream: Bytes
    differences: Codes

    @property
    def nbytes(self) -> int:
        return self.stream.nbytes + self.differences.nbytes

    def take_back(self, codes: Codes) -> None:
        gaps.add(self.stream, np.negative(_widened(self.differences, codes)), codes)


@dataclass(frozen=True)
class DenseUndo:
    """A difference for every code."""

    differences: Codes

    @property
    def nbytes(self) -> int:
        return self.differences.nbytes

    def take_back(self, codes: Codes) -> None:
        codes -= _widened(self.differences, codes)


class RecordingPair:
    """A pair that remembers the differences that the coder asked for, so that they are not computed twice."""

    def __init__(self, versions: Pair) -> None:
        self._versions = versions
        self.undo: Undo | None = None
        """The differences asked for last; None before."""

    def changes(self, limit: float) -> tuple[Numbers, Codes] | None:
        found = self._versions.changes(limit)
        if found is not None:
            self.undo = SparseUndo(gaps.write(found[0]), _narrowed(found[1]))
        return found

    def differences(self) -> Codes:
        found = self._versions.differences()
        self.undo = DenseUndo(_narrowed(found))
        return found

    def classes(self, positions: Numbers, differences: Codes) -> Classes:
        return self._versions.classes(positions, differences)


def _narrowed(differences: Codes) -> Codes:
    """Returns a copy of the differences, of a byte each if all are small. Its integers are signed."""
    signed = differences.view(f"i{differences.itemsize}")
    info = np.iinfo(np.int8)
    small = not len(signed) or (signed.min() >= info.min and signed.max() <= info.max)
    return signed.astype(np.int8 if small else signed.dtype)


def _widened(differences: Codes, like: Codes) -> Codes:
    """Undoes `_narrowed`."""
    return differences.astype(f"i{like.itemsize}").view(like.dtype)
