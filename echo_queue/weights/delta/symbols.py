"""Codes differences as small unsigned symbols, two of 4 bits to a byte or one of 8; larger ones escape into planes.

A pair per byte lets zstd's Huffman code come near the entropy where one value is far more frequent than all others.
Where unchanged elements are left out, callers subtract 1 from each value, so that 0 is the least value that can occur.
"""

import numpy as np

from echo_queue.weights.delta.codes import Codes, join, split
from echo_queue.weights.delta.compiled import U, compiled
from echo_queue.weights.delta.streams import Bytes, MalformedStream

ESCAPES = 0.2
"""The largest share of values that may escape from 4 bits; above it, symbols have 8 bits."""


def width(values: Codes) -> int:
    """Returns the width of a symbol for `values`: 4 or 8 bits."""
    return 4 if _large(values, 15) <= ESCAPES * len(values) else 8


def write(values: Codes, bits: int) -> list[Bytes]:
    """Returns the streams: symbols of `bits` bits, then as many planes of escapes as a value has bytes."""
    most = (1 << bits) - 1
    large = np.empty(_large(values, most) + 1, values.dtype)
    symbols = np.empty((len(values) * bits + 7) // 8, np.uint8)
    (_write_pairs if bits == 4 else _write_bytes)(values, symbols, large)
    return [symbols, *split(large[:-1])]


def read(bits: int, streams: list[Bytes], count: int) -> Codes:
    """Returns `count` values of as many bytes as there are planes. Raises `MalformedStream`."""
    if bits not in (4, 8) or len(streams[0]) != (count * bits + 7) // 8:
        raise MalformedStream(f"not {count} symbols of {bits} bits")
    if bits == 4 and count % 2 and streams[0][-1] > 15:
        raise MalformedStream("a symbol behind the last one")
    large, most = join(streams[1:]), (1 << bits) - 1
    values = np.empty(len(streams[0]) * 8 // bits, large.dtype)
    if bits == 4:
        _read_pairs(streams[0], values)
    else:
        values[:] = streams[0]
    values = values[:count]
    if _large(values, most) != len(large):
        raise MalformedStream(f"not {_large(values, most)} escapes")
    if _large(large, most) != len(large):
        raise MalformedStream(f"an escape of a value below {most}")
    if len(large):
        _fill(values, U(most), np.append(large, large[:1]))
    return values


def _large(values: Codes, most: int) -> int:
    return int(np.count_nonzero(values >= most))


@compiled
def _write_bytes(values: Codes, symbols: Bytes, large: Codes) -> None:
    """Fills `symbols` and `large`, which must have room for one more than there are large values."""
    escaped = U(0)
    for place in range(U(len(values))):
        value = U(values[place])
        symbols[place] = min(value, U(255))
        large[escaped] = value
        escaped += U(value >= U(255))


@compiled
def _write_pairs(values: Codes, symbols: Bytes, large: Codes) -> None:
    """Fills `symbols` and `large`. The first of a pair is in the low half; an odd last value has a byte of its own.

    `large` must have room for one more than there are large values.
    """
    escaped = U(0)
    for place in range(U(len(values) // 2)):
        first, second = U(values[U(2) * place]), U(values[U(2) * place + U(1)])
        symbols[place] = min(first, U(15)) | (min(second, U(15)) << U(4))
        large[escaped] = first
        escaped += U(first >= U(15))
        large[escaped] = second
        escaped += U(second >= U(15))
    if len(values) % 2:
        symbols[-1] = min(U(values[-1]), U(15))
        large[escaped] = values[-1]


@compiled
def _read_pairs(symbols: Bytes, values: Codes) -> None:
    for place in range(U(len(symbols))):
        values[U(2) * place] = symbols[place] & U(15)
        values[U(2) * place + U(1)] = symbols[place] >> U(4)


@compiled
def _fill(values: Codes, most: U, large: Codes) -> None:
    """Replaces each value of `most` by its escape. `large` must have one more entry than there are such values: one
    is read in every step, so that the loop needs no branch."""
    escaped = U(0)
    for place in range(U(len(values))):
        value, instead = U(values[place]), U(large[escaped])
        values[place] = instead if value == most else value
        escaped += U(value == most)
