"""Positions by groups of eight elements, each group's changes in the order of its base's exponents.

An update moves small weights by more codes than large ones, so in a group it is mostly the first few of that order
that change: fewer bits than positions which come from nowhere, for more work than plain gaps.
"""

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from echo_queue.weights.delta.codes import Codes

EIGHT = 8
NETWORK = (
    (0, 1), (2, 3), (4, 5), (6, 7), (0, 2), (1, 3), (4, 6), (5, 7), (1, 2), (5, 6),
    (0, 4), (1, 5), (2, 6), (3, 7), (2, 4), (3, 5), (1, 2), (3, 4), (5, 6),
)  # fmt: skip
"""Batcher's sorting network: 19 passes over whole columns, far cheaper than sorting row by row."""

Bytes: TypeAlias = NDArray[np.uint8]
Numbers: TypeAlias = NDArray[np.int64]

BY_CHANGES: Bytes = np.array(sorted(range(1, 256), key=lambda lanes: (lanes.bit_count(), lanes)), np.uint8)
"""A group's symbol → its ranked lanes: those with one change first, so that nearly all symbols are small."""
SYMBOLS: Bytes = np.zeros(256, np.uint8)
SYMBOLS[BY_CHANGES] = np.arange(255)


def grouped(positions: Numbers) -> tuple[Numbers, Bytes]:
    """The groups with a change, ascending, and each one's changed lanes as bits."""
    groups = positions >> 3
    first = np.flatnonzero(np.diff(groups, prepend=-1))
    bits = np.left_shift(1, positions & 7).astype(np.uint8)
    lanes: Bytes = np.bitwise_or.reduceat(bits, first) if len(first) else bits
    return groups[first], lanes


def ungrouped(groups: Numbers, lanes: Bytes) -> Numbers:
    """The positions again."""
    places = np.flatnonzero(np.unpackbits(lanes, bitorder="little").view(np.bool))
    positions: Numbers = groups[places >> 3]
    positions <<= 3
    places &= 7
    positions += places
    return positions


def rows(codes: Codes, groups: Numbers) -> Codes:
    """The eight codes of each of the ascending `groups`; lanes beyond the end repeat the last code."""
    whole = len(codes) // EIGHT
    inside = groups[: np.searchsorted(groups, whole)]
    found = codes[: whole * EIGHT].reshape(whole, EIGHT).take(inside, axis=0)
    if len(inside) == len(groups):
        return found
    tail = np.minimum(groups[len(inside) :, None] * EIGHT + np.arange(EIGHT), len(codes) - 1)
    return np.concatenate((found, codes[tail]))


def rank(lanes: Bytes, base: Codes) -> Bytes:
    """Bit j of the result: whether the lane that is j-th by exponent has changed. `base`: the groups' rows."""
    wide, ranked = lanes.astype(np.uint16), np.zeros(len(lanes), np.uint16)
    for place, lane in enumerate(_by_exponent(base)):
        ranked |= ((wide >> lane) & 1) << np.uint16(place)
    return ranked.astype(np.uint8)


def unrank(ranked: Bytes, base: Codes) -> Bytes:
    wide, lanes = ranked.astype(np.uint16), np.zeros(len(ranked), np.uint16)
    for place, lane in enumerate(_by_exponent(base)):
        lanes |= ((wide >> np.uint16(place)) & 1) << lane
    return lanes.astype(np.uint8)


def _by_exponent(base: Codes) -> list[NDArray[np.uint16]]:
    """Of each row, the lanes in ascending order of the eight bits behind the sign; of equals, the first lane first."""
    bits = base.itemsize * 8
    keys = (np.ascontiguousarray(base.T) >> max(bits - 9, 0)).astype(np.uint16)
    keys &= 0xFF if bits > 8 else 0x7F
    keys <<= 3
    keys |= np.arange(EIGHT, dtype=np.uint16)[:, None]
    columns, spare = list(keys), np.empty_like(keys[0])
    for low, high in NETWORK:
        np.minimum(columns[low], columns[high], out=spare)
        np.maximum(columns[low], columns[high], out=columns[high])
        columns[low], spare = spare, columns[low]
    return [column & 7 for column in columns]
