"""Codes ascending numbers as the gaps between them, a byte each; 255 adds 255 to the gap, and another byte follows."""

import numpy as np
from numpy.typing import NDArray

from echo_queue.weights.delta.codes import Codes
from echo_queue.weights.delta.compiled import U, compiled
from echo_queue.weights.delta.streams import Bytes, MalformedStream

Numbers = NDArray[np.uint32]
FURTHER = 255


def write(numbers: Numbers) -> Bytes:
    """Codes strictly ascending `numbers`: the first gap counts from zero, each next from just after the last."""
    if not len(numbers):
        return np.empty(0, np.uint8)
    stream = np.empty(len(numbers) + int(numbers[-1]) // FURTHER, np.uint8)
    return stream[: _write(numbers, stream)]


def count(stream: Bytes, limit: int) -> int:
    """Counts the numbers, all of which must be below `limit`. Raises `MalformedStream`."""
    if len(stream) and stream[-1] == FURTHER:
        raise MalformedStream("gaps end within a gap")
    further = int(np.count_nonzero(stream == FURTHER))
    if int(stream.sum(dtype=np.int64)) + len(stream) - further > limit:
        raise MalformedStream(f"a position beyond the end ({limit})")
    return len(stream) - further


def read(stream: Bytes, limit: int) -> Numbers:
    """Returns the numbers, all of which must be below `limit`. Raises `MalformedStream`."""
    found = count(stream, limit)
    numbers = np.empty(len(stream), np.uint32)
    _read(stream, numbers)
    return numbers[:found]


def add(stream: Bytes, differences: Codes, codes: Codes) -> None:
    """Adds a difference to each code at which a number points. Each number must be below `len(codes)` and have its
    difference."""
    _add(stream, differences, codes)


@compiled
def _write(numbers: Numbers, stream: Bytes) -> int:
    length, follows = U(0), U(0)
    for number in numbers:
        gap = U(number) - follows
        follows = U(number) + U(1)
        while gap >= U(FURTHER):
            stream[length] = FURTHER
            length += U(1)
            gap -= U(FURTHER)
        stream[length] = gap
        length += U(1)
    return int(length)


@compiled
def _read(stream: Bytes, numbers: Numbers) -> None:
    """Fills `numbers`, which must be as long as `stream`: the branchless loop also writes unfinished numbers."""
    found, follows = U(0), U(0)
    for gap in stream:
        follows += U(gap)
        numbers[found] = follows
        whole = U(gap != FURTHER)
        follows += whole
        found += whole


@compiled
def _add(stream: Bytes, differences: Codes, codes: Codes) -> None:
    found, follows = U(0), U(0)
    for gap in stream:
        follows += U(gap)
        if gap != FURTHER:
            codes[follows] += differences[found]
            follows += U(1)
            found += U(1)
