"""Ascending numbers as the gaps between them, a byte each; 255 means 255 further, and more follows."""

import numpy as np
from numpy.typing import NDArray

from echo_queue.weights.delta.codes import Codes
from echo_queue.weights.delta.compiled import U, compiled
from echo_queue.weights.delta.streams import Bytes, MalformedStream

Numbers = NDArray[np.uint32]
FURTHER = 255


def write(numbers: Numbers) -> Bytes:
    """Strictly ascending `numbers`, the first counted from zero, each following one from just behind the last."""
    if not len(numbers):
        return np.empty(0, np.uint8)
    stream = np.empty(len(numbers) + int(numbers[-1]) // FURTHER, np.uint8)
    return stream[: _write(numbers, stream)]


def count(stream: Bytes, limit: int) -> int:
    """How many numbers there are, all below `limit`. Raises `MalformedStream`."""
    if len(stream) and stream[-1] == FURTHER:
        raise MalformedStream("gaps end within a gap")
    further = int(np.count_nonzero(stream == FURTHER))
    if int(stream.sum(dtype=np.int64)) + len(stream) - further > limit:
        raise MalformedStream(f"a position beyond the end ({limit})")
    return len(stream) - further


def read(stream: Bytes, limit: int) -> Numbers:
    """The numbers, all below `limit`. Raises `MalformedStream`."""
    found = count(stream, limit)
    numbers = np.empty(len(stream), np.uint32)
    _read(stream, numbers)
    return numbers[:found]


def add(stream: Bytes, differences: Codes, codes: Codes) -> None:
    """Adds to those of `codes` that the numbers point at; each is below their `len`, and has its difference."""
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
    """Without branches, so that `numbers` is as long as `stream`."""
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
