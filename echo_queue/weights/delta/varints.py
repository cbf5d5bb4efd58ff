"""Codes numbers in base 128 (LEB128): seven bits to a byte, the lowest first; the highest bit says that more follow.

A number has one code: its last digit is not 0, unless it is its only one.
"""

import numpy as np

from echo_queue.weights.delta.compiled import U, compiled
from echo_queue.weights.delta.gaps import Numbers
from echo_queue.weights.delta.streams import Bytes, MalformedStream

MOST_BYTES = 4
"""The longest code of a number, which is therefore below 2^28."""
BROKEN = np.int64(-1)


def write(numbers: Numbers) -> Bytes:
    """Codes numbers below 2^28."""
    stream = np.empty(MOST_BYTES * len(numbers), np.uint8)
    return stream[: _write(numbers, stream)]


def read(stream: Bytes) -> Numbers:
    """Returns all the numbers of a stream. Raises `MalformedStream`."""
    numbers = np.empty(len(stream), np.uint32)
    found = _read(stream, numbers)
    if found < 0:
        raise MalformedStream(f"a number is cut short, longer than {MOST_BYTES} bytes, or ends with a zero")
    return numbers[:found]


@compiled
def _write(numbers: Numbers, stream: Bytes) -> int:
    length = U(0)
    for number in numbers:
        left = U(number)
        while left >= U(128):
            stream[length] = (left & U(127)) | U(128)
            length += U(1)
            left >>= U(7)
        stream[length] = left
        length += U(1)
    return int(length)


@compiled
def _read(stream: Bytes, numbers: Numbers) -> np.int64:
    """Fills `numbers`, which must be as long as `stream`; returns how many there are, or `BROKEN`."""
    found, number, shift = U(0), U(0), U(0)
    for byte in stream:
        number |= (U(byte) & U(127)) << shift
        if shift and not byte:
            return BROKEN
        if byte < 128:
            numbers[found] = number
            found += U(1)
            number, shift = U(0), U(0)
        else:
            shift += U(7)
            if shift == U(7 * MOST_BYTES):
                return BROKEN
    return BROKEN if shift else np.int64(found)
