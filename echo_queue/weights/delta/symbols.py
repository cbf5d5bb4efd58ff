"""Small unsigned integers as 4-bit symbols in pairs, or as bytes; the few larger ones escape into planes of their own.

A pair per byte lets zstd's Huffman code come near the entropy where one value is far more frequent than all others.
"""

import numpy as np
from numpy.typing import NDArray

from echo_queue.weights.delta.codes import Codes, join, split
from echo_queue.weights.delta.streams import MalformedStream

ESCAPES = 0.2
"""Bytes instead of pairs where a larger share would escape from 4 bits."""


def width(values: Codes) -> int:
    """4 or 8 bits, whichever suits `values`."""
    return 4 if np.count_nonzero(values >= 15) <= ESCAPES * len(values) else 8


def write(values: Codes, bits: int) -> list[NDArray[np.uint8]]:
    """The streams: symbols of `bits` bits, then as many planes of escapes as a value has bytes."""
    most = (1 << bits) - 1
    symbols = np.minimum(values, most).astype(np.uint8)
    large = values[np.flatnonzero(values >= most)]
    return [_pairs(symbols) if bits == 4 else symbols, *split(large)]


def read(bits: int, streams: list[NDArray[np.uint8]], count: int) -> Codes:
    """`count` values of as many bytes as there are planes. Raises `MalformedStream`."""
    if bits not in (4, 8) or len(streams[0]) != (count * bits + 7) // 8:
        raise MalformedStream(f"not {count} symbols of {bits} bits")
    symbols = _singles(streams[0])[:count] if bits == 4 else streams[0]
    values: Codes = symbols.astype(f"u{len(streams) - 1}")
    large = np.flatnonzero(symbols == (1 << bits) - 1)
    if any(len(plane) != len(large) for plane in streams[1:]):
        raise MalformedStream(f"not {len(large)} escapes")
    values[large] = join(streams[1:])
    return values


def _pairs(symbols: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The first of a pair is in the low half; an odd last one stands alone."""
    even = symbols if len(symbols) % 2 == 0 else np.append(symbols, np.uint8(0))
    both = even.view(np.uint16)
    return (both | (both >> 4)).astype(np.uint8)


def _singles(pairs: NDArray[np.uint8]) -> NDArray[np.uint8]:
    both = pairs.astype(np.uint16)
    both |= both << 4
    both &= 0x0F0F
    return both.view(np.uint8)
