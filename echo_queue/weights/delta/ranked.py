"""Codes positions by groups of eight elements, each group's changes in the order of its base's exponents.

An update moves small weights by more codes than large ones, so mostly the first few lanes of that order change in a
group: this takes fewer bits than positions coded without the base, and more work than plain gaps.
"""

import numpy as np

from echo_queue.weights.delta.codes import Codes
from echo_queue.weights.delta.compiled import U, compiled
from echo_queue.weights.delta.gaps import Numbers
from echo_queue.weights.delta.streams import Bytes, MalformedStream

EIGHT = 8
BATCH = 512
"""The number of groups ranked at a time, so that the compiler uses vector instructions."""

BY_CHANGES: Bytes = np.array(sorted(range(1, 256), key=lambda lanes: (lanes.bit_count(), lanes)), np.uint8)
"""A group's symbol → its ranked lanes: those with one change first, so that nearly all symbols are small."""
SYMBOLS: Bytes = np.zeros(256, np.uint8)
SYMBOLS[BY_CHANGES] = np.arange(255)
LOWEST: Bytes = np.array([0] + [(bits & -bits).bit_length() - 1 for bits in range(1, 256)], np.uint8)
"""A byte → the place of its lowest bit."""


def grouped(positions: Numbers) -> tuple[Numbers, Bytes]:
    """Returns the groups with a change, ascending, and each group's changed lanes as bits."""
    groups, lanes = np.empty(len(positions) + 1, np.uint32), np.empty(len(positions) + 1, np.uint8)
    found = _group(positions, groups, lanes)
    return groups[1 : found + 1], lanes[1 : found + 1]


def rank(lanes: Bytes, groups: Numbers, base: Codes) -> Bytes:
    """Returns each group's symbol. Bit j of the lanes it stands for: whether the lane j-th by exponent has changed."""
    _check(groups, base)
    made = np.empty(len(lanes), np.uint8)
    _rank(lanes, groups, base, made)
    return made


def add(ranked: Bytes, groups: Numbers, differences: Codes, codes: Codes) -> Numbers:
    """Adds `differences` to the codes at which `ranked` points, ranking by `codes` themselves; returns their positions.

    There are as many differences as bits. If a position lies beyond the end, it and all later ones are neither added
    nor returned.
    """
    _check(groups, codes)
    positions = np.empty(len(differences), np.uint32)
    return positions[: _add(ranked, groups, differences, codes, positions)]


def _check(groups: Numbers, codes: Codes) -> None:
    if len(groups) and int(groups[-1]) * EIGHT >= len(codes):
        raise MalformedStream("a group beyond the end")


@compiled
def _group(positions: Numbers, groups: Numbers, lanes: Bytes) -> int:
    """Fills `groups` and `lanes` from index 1 on; the entry at 0 belongs to no group. Returns the number of groups."""
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
def _rank(lanes: Bytes, groups: Numbers, base: Codes, made: Bytes) -> None:
    keys, ranks = np.empty((8, BATCH), np.uint8), np.empty((8, BATCH), np.uint8)
    for start in range(U(0), U(len(lanes)), U(BATCH)):
        count = min(U(BATCH), U(len(lanes)) - start)
        _order(base, groups[start : start + count], keys, ranks)
        bits, ranked = lanes[start : start + count], made[start : start + count]
        ranked[:] = 0
        for lane in range(U(8)):
            places = ranks[lane]
            for group in range(count):
                ranked[group] |= places[group] & (U(0) - ((U(bits[group]) >> lane) & U(1)))
        for group in range(count):
            ranked[group] = SYMBOLS[ranked[group]]


@compiled
def _add(ranked: Bytes, groups: Numbers, differences: Codes, codes: Codes, positions: Numbers) -> int:
    keys, ranks, lanes = np.empty((8, BATCH), np.uint8), np.empty((8, BATCH), np.uint8), np.empty(BATCH, np.uint8)
    found, end = U(0), U(len(codes))
    for start in range(U(0), U(len(ranked)), U(BATCH)):
        count = min(U(BATCH), U(len(ranked)) - start)
        _order(codes, groups[start : start + count], keys, ranks)
        bits = ranked[start : start + count]
        lanes[:] = 0
        for lane in range(U(8)):
            places, own = ranks[lane], U(1) << lane
            for group in range(count):
                lanes[group] |= own if bits[group] & places[group] else U(0)
        first = found
        for group in range(count):
            changed = U(lanes[group])
            while changed:  # hardly ever more than once
                positions[found] = (U(groups[start + group]) << U(3)) + U(LOWEST[changed])
                found += U(1)
                changed &= changed - U(1)
        for place in range(first, found):
            if positions[place] >= end:
                return int(place)
            codes[U(positions[place])] += differences[place]
    return int(found)


@compiled
def _order(codes: Codes, groups: Numbers, keys: Bytes, ranks: Bytes) -> None:
    """Ranks the lanes of up to `BATCH` groups, one bit of eight each: by the eight bits behind the sign, then by lane.

    Lanes beyond the end count as the last code.
    """
    bits, last, count = 8 * codes.itemsize, U(len(codes) - 1), U(len(groups))
    shift, mask = U(max(bits - 9, 0)), U(0xFF if bits > 8 else 0x7F)
    touched = U(0)
    for place in range(count):  # so little work that many lines of memory are on their way at once
        touched += U(codes[U(groups[place]) << U(3)])
    keys[0, 0] = touched
    for place in range(count):
        first = U(groups[place]) << U(3)
        if first + U(7) <= last:
            for lane in range(U(8)):
                keys[lane, place] = (U(codes[first + lane]) >> shift) & mask
        else:
            for lane in range(U(8)):
                keys[lane, place] = (U(codes[min(first + lane, last)]) >> shift) & mask
    for lane in range(U(8)):
        rank, key = ranks[lane], keys[lane]
        rank[:] = 1
        for other in range(U(8)):
            rival = keys[other]
            if other < lane:
                for place in range(count):
                    rank[place] <<= rival[place] <= key[place]
            elif other > lane:
                for place in range(count):
                    rank[place] <<= rival[place] < key[place]
