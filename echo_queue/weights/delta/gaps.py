"""Ascending numbers as the gaps between them, a byte each; 255 means 255 further, and more follows."""

import numpy as np
from numpy.typing import NDArray

from echo_queue.weights.delta.streams import MalformedStream

FURTHER = 255


def write(numbers: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Strictly ascending `numbers`, the first counted from zero, each following one from just behind the last."""
    if not len(numbers):
        return np.empty(0, np.uint8)
    gaps = np.empty_like(numbers)
    gaps[0] = numbers[0]
    np.subtract(numbers[1:], numbers[:-1], out=gaps[1:])
    gaps[1:] -= 1
    wide = np.flatnonzero(gaps >= FURTHER)
    if not len(wide):
        return gaps.astype(np.uint8)
    steps = gaps[wide] // FURTHER
    gaps[wide] -= steps * FURTHER
    stream = gaps.astype(np.uint8)
    return np.insert(stream, np.repeat(wide, steps), np.uint8(FURTHER))


def read(stream: NDArray[np.uint8], limit: int) -> NDArray[np.int64]:
    """The numbers, all below `limit`. Raises `MalformedStream`."""
    import torch

    ends = stream != FURTHER
    numbers = (stream + ends).astype(np.int64)
    torch.from_numpy(numbers).cumsum_(0)  # numpy's takes three times as long
    numbers -= 1
    if not ends.all():
        numbers = numbers.compress(ends)
        if not ends[-1]:
            raise MalformedStream("gaps end within a gap")
    if len(numbers) and numbers[-1] >= limit:
        raise MalformedStream(f"a position beyond the end ({limit})")
    return numbers
