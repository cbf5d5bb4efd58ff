import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from echo_queue.records import Group, Sample
from learner.batch import micro_batches, prepare, untrainable
from tests.learner.synthetic import VOCABULARY, group

SHAPE = st.tuples(st.integers(1, 30), st.lists(st.integers(1, 40), min_size=2, max_size=5))
"""A prompt's length and its samples' lengths."""


def broken(**changes: object) -> Group:
    """A group whose second sample has `changes`."""
    whole = group()
    samples = (whole.samples[0], dataclasses.replace(whole.samples[1], **changes), *whole.samples[2:])  # type: ignore[arg-type]
    return dataclasses.replace(whole, samples=samples)


@settings(max_examples=50, deadline=None)
@given(shapes=st.lists(SHAPE, min_size=1, max_size=6), micro_tokens=st.integers(1, 300))
def test_each_token_is_in_one_micro_batch_and_none_is_too_large(
    shapes: list[tuple[int, list[int]]], micro_tokens: int
) -> None:
    groups = [
        group(n, prompt, lengths, [1.0] + [0.0] * (len(lengths) - 1)) for n, (prompt, lengths) in enumerate(shapes)
    ]
    batches = list(micro_batches(prepare(groups, "std", "skip"), micro_tokens))
    for batch in batches:
        padded = batch.packing.prompts.numel() + batch.packing.queries.numel()
        assert padded <= micro_tokens or len(batch.packing.queries) == 1
        assert len(batch.tokens) == batch.packing.shared + len(batch.targets)
    behaviour = sorted(float(value) for batch in batches for value in batch.behaviour)
    expected = sorted(float(value) for item in groups for sample in item.samples for value in sample.logprobs)
    assert behaviour == expected


def test_a_group_without_differences_is_skipped_or_kept_in_the_token_count() -> None:
    groups = [group(0), group(1, rewards=(1, 1, 1))]
    skipped, kept = (prepare(groups, "std", option) for option in ("skip", "keep"))
    assert (len(skipped.parts), skipped.tokens, skipped.zero_variance_groups) == (1, 13, 1)
    assert (len(kept.parts), kept.tokens, kept.zero_variance_groups) == (2, 26, 1)
    assert all(row.advantage == 0 for row in kept.parts[1].rows)


def test_a_good_group_is_trainable() -> None:
    assert untrainable(group(), VOCABULARY) is None


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (broken(logprobs=np.array([], np.float32)), "0 behaviour log-probabilities for 6 tokens; off-policy"),
        (broken(logprobs=np.full(6, np.nan, np.float32)), "not finite; off-policy"),
        (broken(tokens=np.full(6, VOCABULARY, np.int32)), "outside the model's vocabulary of 40"),
        (broken(tokens=np.full(6, -1, np.int32)), "outside the model's vocabulary"),
        (broken(tokens=np.array([], np.int32)), "sample 1 is empty"),
        (broken(reward=math.inf), "reward inf"),
        (dataclasses.replace(group(), prompt=np.array([], np.int32)), "empty prompt"),
        (dataclasses.replace(group(), prompt=np.array([99], np.int32)), "its prompt has token ids outside"),
        (dataclasses.replace(group(), samples=group().samples[:1]), "needs two"),
    ],
)
def test_what_cannot_be_trained_is_named(bad: Group, reason: str) -> None:
    assert reason in (untrainable(bad, VOCABULARY) or "")


def test_samples_carry_their_own_behaviour_log_probabilities_and_advantages() -> None:
    item = group(7, prompt=3, lengths=(2, 1), rewards=(1, 0))
    (batch,) = micro_batches(prepare([item], "mean", "skip"), 100)
    first, second = item.samples
    assert batch.targets.tolist() == [*first.tokens, *second.tokens]
    assert batch.behaviour.tolist() == [*first.logprobs, *second.logprobs]
    assert batch.advantages.tolist() == [0.5, 0.5, -0.5]
    assert batch.positions.tolist() == [0, 1, 2, 3, 2]
    assert isinstance(first, Sample)
