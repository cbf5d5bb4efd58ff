"""Stamps that show which tensors made a token, whatever the labels say, although no model is computed.

A storm's learner publishes a further tensor that holds the version it belongs to; the made-up engine reads it from what
it was given to load, and writes it into the log-probability of each token that it draws, exactly.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from echo_queue.records import Sample, Version

if TYPE_CHECKING:
    from torch import Tensor

NAME = "stamp"
FIRST = np.float32(2.0).view(np.uint32)
"""The first of the 2²⁴ float32 numbers from 2 up to 8, negated: 11 bits of lineage, then 13 of the number."""
NUMBER_BITS, MOST = 13, 1 << 24


def on(version: Version, tensors: "Mapping[str, Tensor]") -> "dict[str, Tensor]":
    """The tensors of this version, stamped with it."""
    import torch

    return {**tensors, NAME: torch.tensor([version.lineage, version.number])}


def of(tensors: "Mapping[str, Tensor]") -> Version:
    lineage, number = tensors[NAME].tolist()
    return Version(lineage, number)


def logprobs(length: int, version: Version) -> npt.NDArray[np.float32]:
    """Returns the log-probabilities of `length` tokens drawn with this version."""
    code = (version.lineage << NUMBER_BITS) + version.number
    return np.full(length, -(FIRST + np.uint32(code)).view(np.float32), np.float32)


def read(samples: Sequence[Sample]) -> str:
    """The versions that made these samples, oldest first: `1.3 1.4`.

    Empty where a token that was drawn tells none, or another number than its span.
    """
    told: set[Version] = set()
    for sample in samples:
        drawn = np.ones(len(sample.tokens), bool)
        for start, end in sample.observed:
            drawn[start:end] = False
        codes = (-sample.logprobs).astype(np.float32).view(np.uint32).astype(np.int64) - int(FIRST)
        spans = np.repeat([span.version for span in sample.spans], _lengths(sample))
        numbers = codes & ((1 << NUMBER_BITS) - 1)
        if not ((codes >= 0) & (codes < MOST) & (numbers == spans))[drawn].all():
            return ""
        told |= {Version(code >> NUMBER_BITS, code & ((1 << NUMBER_BITS) - 1)) for code in set(codes[drawn].tolist())}
    return " ".join(map(str, sorted(told)))


def _lengths(sample: Sample) -> list[int]:
    ends = [*(span.start for span in sample.spans[1:]), len(sample.tokens)]
    return [end - span.start for span, end in zip(sample.spans, ends, strict=True)]
