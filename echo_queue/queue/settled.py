"""The prompts that checkpoints hold, as one bit each: the form in which `restore` tells Redis of them (`state.lua`)."""

from collections.abc import Iterable, Mapping

import numpy as np


def bits_of(task_ids: Iterable[str], most_bytes: int) -> Mapping[str, bytes] | None:
    """Returns the bits of these tasks' prompts, for each epoch "<set>/<epoch>" in which there are any.

    The bit of prompt i is the one of value 2^(7 − i mod 8) in byte ⌊i / 8⌋. Returns None if all bits together take more
    than `most_bytes`.
    """
    indices: dict[str, list[int]] = {}
    for task in task_ids:
        epoch, _, index = task.rpartition("/")
        indices.setdefault(epoch, []).append(int(index))
    if sum(max(found) // 8 + 1 for found in indices.values()) > most_bytes:
        return None
    return {epoch: _packed(found) for epoch, found in indices.items()}


def _packed(indices: list[int]) -> bytes:
    bits = np.zeros(max(indices) + 1, np.bool_)
    bits[indices] = True
    return np.packbits(bits).tobytes()
