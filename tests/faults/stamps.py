"""Which tensors made a group, whatever the labels say: readable from outside although no model is computed.

A storm's learner publishes a further tensor that holds the version it belongs to; the made-up engine reads it from what
it was given to load, and writes it into the log-probabilities of its groups, exactly.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from echo_queue.records import Sample, Version

if TYPE_CHECKING:
    from torch import Tensor

NAME = "stamp"
BASE, STEP, MOST = -3.0, 2.0**-22, 2**22
"""Float32 holds BASE − n × STEP exactly for each n below MOST."""


def on(version: Version, tensors: "Mapping[str, Tensor]") -> "dict[str, Tensor]":
    """The tensors of this version, stamped with it."""
    import torch

    return {**tensors, NAME: torch.tensor([version.lineage, version.number])}


def of(tensors: "Mapping[str, Tensor]") -> Version:
    lineage, number = tensors[NAME].tolist()
    return Version(lineage, number)


def logprobs(place: int, length: int, version: Version) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    """Of a group's sample number `place`: the first tells the lineage, the second the number."""
    told = np.full(length, BASE, np.float32)
    told[0] -= STEP * (version.lineage, version.number)[min(place, 1)]
    return told


def read(samples: Sequence[Sample]) -> str:
    """`lineage.number`; empty where none was written."""
    told = [(BASE - float(sample.logprobs[0])) / STEP for sample in samples[:2] if len(sample.logprobs)]
    if len(told) < 2 or not all(number.is_integer() and 0 <= number < MOST for number in told):
        return ""
    return f"{told[0]:.0f}.{told[1]:.0f}"
