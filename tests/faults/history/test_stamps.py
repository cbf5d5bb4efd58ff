"""A version written into log-probabilities is read back exactly, token by token, and nothing is read where none was."""

import numpy as np
import pytest
import torch

from echo_queue.records import Group, Observed, Sample, Span, Version
from echo_queue.records.group_codec import decode, encode
from tests.faults.history import stamps

OLD, NEW = Version(3, 1), Version(3, 2)


def group(samples: tuple[Sample, ...]) -> Group:
    return Group("a/0/0", "a", 0, 0, 0, "w", 1, np.arange(2, dtype=np.int32), samples)


def sample(
    logprobs: np.ndarray[tuple[int], np.dtype[np.float32]], *spans: Span, observed: tuple[Observed, ...] = ()
) -> Sample:
    return Sample(np.arange(len(logprobs), dtype=np.int32), logprobs, spans, 0.0, "stop", observed)


@pytest.mark.parametrize("version", [Version(0, 0), Version(1, 1), Version(225, 1_043), Version(2_047, 8_191)])
def test_the_tensors_version_survives_its_way(version: Version) -> None:
    stamped = stamps.on(version, {"weight": torch.zeros(3)})
    assert stamps.of(stamped) == version
    made = group((sample(stamps.logprobs(3, stamps.of(stamped)), Span(0, version.number)),) * 2)
    assert stamps.read(decode(encode(made)).samples) == str(version)


def test_each_token_tells_its_own_and_what_was_observed_tells_none() -> None:
    told = np.concatenate([stamps.logprobs(2, OLD), np.zeros(1, np.float32), stamps.logprobs(3, NEW)])
    mixed = sample(told, Span(0, 1), Span(3, 2), observed=(Observed(2, 3),))
    assert stamps.read([mixed, sample(stamps.logprobs(1, OLD), Span(0, 1))]) == "3.1 3.2"
    late = sample(told, Span(0, 1), Span(4, 2), observed=(Observed(2, 3),))
    assert not stamps.read([late]), "token 3 was drawn by another version than its span says"


def test_other_log_probabilities_are_no_stamp() -> None:
    assert not stamps.read([sample(np.full(3, -1.0, np.float32), Span(0, 1))])
    assert not stamps.read([sample(np.zeros(3, np.float32), Span(0, 1))])
