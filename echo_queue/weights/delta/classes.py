"""Codes positions as gaps within each class of a base's elements: those with the same key, which is their exponent.

An update moves small weights by more codes than large ones, so how often an element changes depends on its exponent,
which both ends know. Within a class all elements are about as likely to change, so gaps there are short to code.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from echo_queue.weights.delta import varints
from echo_queue.weights.delta.codes import Codes
from echo_queue.weights.delta.compiled import U, compiled
from echo_queue.weights.delta.gaps import Numbers
from echo_queue.weights.delta.streams import Bytes, MalformedStream

KEYS = 256
"""The number of classes."""
NEVER = 1 << 30
"""More elements than a piece has."""


class Classes(NamedTuple):
    """Changes in class order: those of class 0 by position, then those of class 1, and so on.

    `counts`: the number of changes in each of the 256 classes. `gaps`: the unchanged elements of its class between a
    change and the one before it, or the class's first element. `differences`: by how much the codes change.
    """

    counts: Numbers
    gaps: Numbers
    differences: Codes


def shift_and_mask(width: int) -> tuple[int, int]:
    """Returns s and m for codes of `width` bytes: a code c has the key (c >> s) & m, the 8 bits behind the sign."""
    return (8 * width - 9, 0xFF) if width > 1 else (0, 0x7F)


def sort(positions: Numbers, differences: Codes, base: Codes) -> Classes:
    """Brings changes, ascending by position, into class order."""
    keys, ranks = np.empty(len(positions), np.uint8), np.empty(len(positions), np.uint32)
    shift, mask = shift_and_mask(base.itemsize)
    _rank(positions, base, (U(shift), U(mask)), keys, ranks)
    return in_class_order(keys, ranks, differences)


def in_class_order(keys: Bytes, ranks: Numbers, differences: Codes) -> Classes:
    """Brings changes, ascending by position, into class order. `ranks`: how many elements of its class precede each."""
    order, counts = np.argsort(keys, kind="stable"), np.bincount(keys, minlength=KEYS)
    ranks = ranks[order]
    gaps = np.diff(ranks, prepend=ranks[:1]) - np.uint32(1)
    firsts = (np.cumsum(counts) - counts)[counts > 0]
    gaps[firsts] = ranks[firsts]
    return Classes(counts.astype(np.uint32), gaps, differences[order])


def positions(changes: Classes, base: Codes) -> Numbers:
    """Returns the changes' positions in `base`, in class order. Raises `MalformedStream` for one beyond the end.

    There must be as many gaps as the counts say.
    """
    found, ends = np.empty(len(changes.gaps), np.uint32), np.cumsum(changes.counts, dtype=np.int64)
    shift, mask = shift_and_mask(base.itemsize)
    if _positions(ends, np.append(changes.gaps, np.uint32(0)), base, (U(shift), U(mask)), found) < len(found):
        raise MalformedStream("a position beyond the end of its class")
    return found


def write_counts(counts: Numbers) -> Bytes:
    """Codes the first class with a change, then the number of changes in each class from it to the last with one."""
    used = np.flatnonzero(counts)
    first, last = int(used[0]), int(used[-1])
    return varints.write(np.append(np.uint32(first), counts[first : last + 1]))


def read_counts(stream: Bytes, limit: int) -> Numbers:
    """Undoes `write_counts`; there are at most `limit` changes. Raises `MalformedStream`."""
    numbers, counts = varints.read(stream), np.zeros(KEYS, np.uint32)
    if len(numbers) < 2 or int(numbers[0]) + len(numbers) - 1 > KEYS:
        raise MalformedStream(f"{len(numbers)} numbers do not count the changes of {KEYS} classes")
    first = int(numbers[0])
    counts[first : first + len(numbers) - 1] = numbers[1:]
    if not numbers[1] or not numbers[-1] or counts.sum(dtype=np.int64) > limit:
        raise MalformedStream(f"the classes do not have 1 to {limit} changes")
    return counts


@compiled
def _rank(positions: Numbers, base: Codes, key_bits: tuple[U, U], keys: Bytes, ranks: Numbers) -> None:
    """Fills in each position's key, and how many elements before it have the same.

    Every other element is counted in another table, because a count that was just written takes time to read again.
    """
    (shift, mask), place = key_bits, U(0)
    even, odd = np.zeros(KEYS, np.uint32), np.zeros(KEYS, np.uint32)
    for index in range(U(len(positions))):
        position = U(positions[index])
        while place + U(1) < position:
            even[(U(base[place]) >> shift) & mask] += U(1)
            odd[(U(base[place + U(1)]) >> shift) & mask] += U(1)
            place += U(2)
        if place < position:
            odd[(U(base[place]) >> shift) & mask] += U(1)
        key = (U(base[position]) >> shift) & mask
        keys[index], ranks[index] = key, even[key] + odd[key]
        even[key] += U(1)
        place = position + U(1)


@compiled
def _positions(ends: NDArray[np.int64], gaps: Numbers, base: Codes, key_bits: tuple[U, U], found: Numbers) -> int:
    """Fills `found` and returns how many positions there are: fewer than gaps if some class has too few elements.

    `ends`: where each class ends in `found`. `gaps` must have one entry more than `found`.
    """
    (shift, mask), total = key_bits, U(0)
    left, nexts = np.empty(KEYS, np.uint32), np.empty(KEYS, np.uint64)
    for one in range(U(KEYS)):
        nexts[one] = ends[one - U(1)] if one else 0
        left[one] = gaps[nexts[one]] + U(1) if nexts[one] < U(ends[one]) else U(NEVER)
    for place in range(U(len(base))):
        key = (U(base[place]) >> shift) & mask
        remaining = left[key] - np.uint32(1)
        left[key] = remaining
        if remaining == np.uint32(0):
            index = nexts[key]
            found[index] = place
            total += U(1)
            nexts[key] = index + U(1)
            left[key] = gaps[index + U(1)] + U(1) if index + U(1) < U(ends[key]) else U(NEVER)
    return int(total)
