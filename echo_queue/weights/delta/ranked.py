"""Positions by groups of eight elements, each group's changes in the order of its base's exponents.

An update moves small weights by more codes than large ones, so in a group it is mostly the first few of that order
that change: fewer bits than positions which come from nowhere, for more work than plain gaps.
"""

import numpy as np

from echo_queue.weights.delta.codes import Codes
from echo_queue.weights.delta.compiled import U, compiled
from echo_queue.weights.delta.gaps import Numbers
from echo_queue.weights.delta.streams import Bytes

EIGHT = 8
BATCH = 1024
"""Groups ranked at a time, so that the compiler makes vectors of them."""

BY_CHANGES: Bytes = np.array(sorted(range(1, 256), key=lambda lanes: (lanes.bit_count(), lanes)), np.uint8)
"""A group's symbol → its ranked lanes: those with one change first, so that nearly all symbols are small."""
SYMBOLS: Bytes = np.zeros(256, np.uint8)
SYMBOLS[BY_CHANGES] = np.arange(255)


def grouped(positions: Numbers) -> tuple[Numbers, Bytes]:
    """The groups with a change, ascending, and each one's changed lanes as bits."""
    groups, lanes = np.empty(len(positions) + 1, np.uint32), np.empty(len(positions) + 1, np.uint8)
    found = _group(positions, groups, lanes)
    return groups[1 : found + 1], lanes[1 : found + 1]


def ungrouped(groups: Numbers, lanes: Bytes) -> Numbers:
    """The positions again."""
    positions = np.empty(len(groups) * EIGHT, np.uint32)
    return positions[: _ungroup(groups, lanes, positions)]


def rows(codes: Codes, groups: Numbers) -> Codes:
    """The eight codes of each of the ascending `groups`; lanes beyond the end repeat the last code."""
    if len(groups) and int(groups[-1]) * EIGHT >= len(codes):
        raise IndexError("a group beyond the end")
    found = np.empty((len(groups), EIGHT), codes.dtype)
    _gather(codes, groups, found)
    return found


def rank(lanes: Bytes, base: Codes) -> Bytes:
    """Bit j of the result: whether the lane that is j-th by exponent has changed. `base`: the groups' rows."""
    return _permuted(lanes, base, True)


def unrank(ranked: Bytes, base: Codes) -> Bytes:
    return _permuted(ranked, base, False)


def _permuted(bits: Bytes, base: Codes, to_ranks: bool) -> Bytes:
    made = np.zeros(len(bits), np.uint8)
    width = base.itemsize * 8
    _permute(bits, base, U(max(width - 9, 0)), U(0xFF if width > 8 else 0x7F), to_ranks, made)
    return made


@compiled
def _group(positions: Numbers, groups: Numbers, lanes: Bytes) -> int:
    """Counts from 1: the entry before the first is of no group."""
    found, last = U(0), U(1 << 63)
    lanes[0] = 0
    for position in positions:
        group = U(position) >> U(3)
        fresh = U(group != last)
        before = U(0) if fresh else U(lanes[found])
        found += fresh
        groups[found] = group
        lanes[found] = before | (U(1) << (U(position) & U(7)))
        last = group
    return int(found)


@compiled
def _ungroup(groups: Numbers, lanes: Bytes, positions: Numbers) -> int:
    found = U(0)
    for place in range(U(len(groups))):
        left, first = U(lanes[place]), U(groups[place]) << U(3)
        while left:
            lane = U(0)
            while not (left >> lane) & U(1):
                lane += U(1)
            positions[found] = first + lane
            found += U(1)
            left &= left - U(1)
    return int(found)


@compiled
def _gather(codes: Codes, groups: Numbers, rows: Codes) -> None:
    last = U(len(codes) - 1)
    for place in range(U(len(groups))):
        first = U(groups[place]) << U(3)
        if first + U(7) <= last:
            for lane in range(U(8)):
                rows[place, lane] = codes[first + lane]
        else:
            for lane in range(U(8)):
                rows[place, lane] = codes[min(first + lane, last)]


@compiled
def _permute(bits: Bytes, base: Codes, shift: int, mask: int, to_ranks: bool, made: Bytes) -> None:
    """By the eight bits behind the sign; of equals, the first lane is first. A lane's rank is kept as one bit of eight.

    With `to_ranks` from lanes to ranks, else back.
    """
    keys = np.empty((8, BATCH), np.uint8)
    ranks = np.empty(BATCH, np.uint8)
    for start in range(U(0), U(len(bits)), U(BATCH)):
        count = min(U(BATCH), U(len(bits)) - start)
        for place in range(count):
            for lane in range(U(8)):
                keys[lane, place] = (U(base[start + place, lane]) >> shift) & mask
        for lane in range(U(8)):
            ranks[:] = 1
            key = keys[lane]
            for other in range(U(8)):
                rival = keys[other]
                if other < lane:
                    for place in range(U(BATCH)):
                        ranks[place] <<= rival[place] <= key[place]
                elif other > lane:
                    for place in range(U(BATCH)):
                        ranks[place] <<= rival[place] < key[place]
            own = U(1) << lane
            for place in range(count):
                if to_ranks:
                    made[start + place] |= ranks[place] if bits[start + place] & own else U(0)
                else:
                    made[start + place] |= own if bits[start + place] & ranks[place] else U(0)
