"""Ascending numbers as the gaps between them, a byte each; 255 means 255 further, and more follows."""

import numpy as np
from numpy.typing import NDArray

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


def read(stream: Bytes, limit: int) -> Numbers:
    """The numbers, all below `limit`. Raises `MalformedStream`."""
    if len(stream) and stream[-1] == FURTHER:
        raise MalformedStream("gaps end within a gap")
    numbers = np.empty(len(stream), np.uint32)
    found, end = _read(stream, numbers)
    if end > limit:
        raise MalformedStream(f"a position beyond the end ({limit})")
    return numbers[:found]


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
def _read(stream: Bytes, numbers: Numbers) -> tuple[int, int]:
    """How many there are, and what follows the last. Without branches: `numbers` is as long as `stream`."""
    found, follows = U(0), U(0)
    for gap in stream:
        follows += U(gap)
        numbers[found] = follows
        whole = U(gap != FURTHER)
        follows += whole
        found += whole
    return int(found), int(follows)
