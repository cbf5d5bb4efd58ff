"""A version written into a group's log-probabilities is read back exactly, and nothing is read where none was."""

import numpy as np
import pytest
import torch

from echo_queue.codec import decode, encode
from echo_queue.records import Group, Sample, Span, Version
from tests.faults import stamps


def group(samples: tuple[Sample, ...]) -> Group:
    return Group("a/0/0", "a", 0, 0, 0, "w", 1, np.arange(2, dtype=np.int32), samples)


def sample(logprobs: np.ndarray[tuple[int], np.dtype[np.float32]]) -> Sample:
    return Sample(np.arange(len(logprobs), dtype=np.int32), logprobs, (Span(0, 1),), 0.0, "stop")


@pytest.mark.parametrize("version", [Version(0, 0), Version(1, 1), Version(225, 1_043), Version(9, stamps.MOST - 1)])
def test_the_tensors_version_survives_its_way(version: Version) -> None:
    stamped = stamps.on(version, {"weight": torch.zeros(3)})
    assert stamps.of(stamped) == version
    made = group(tuple(sample(stamps.logprobs(place, 3, stamps.of(stamped))) for place in range(2)))
    assert stamps.read(decode(encode(made)).samples) == f"{version.lineage}.{version.number}"


def test_other_log_probabilities_are_no_stamp() -> None:
    assert not stamps.read([sample(np.full(3, -1.0, np.float32))] * 2)
    assert not stamps.read([sample(np.full(3, -3.0, np.float32))])
