from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from echo_queue.config import Learner
from echo_queue.records import Sample, Span
from learner.batch.micro_batches import micro_batches
from learner.batch.prepare import prepare
from learner.model.attention.rectangles import Rectangles
from tests.learner.synthetic import group, with_observed

SHAPE = st.tuples(st.integers(1, 30), st.lists(st.integers(1, 40), min_size=2, max_size=5))
"""A prompt's length and its samples' lengths."""


@settings(max_examples=50, deadline=None)
@given(shapes=st.lists(SHAPE, min_size=1, max_size=6), micro_tokens=st.integers(1, 300))
def test_each_token_is_in_one_micro_batch_and_none_is_too_large(
    shapes: list[tuple[int, list[int]]], micro_tokens: int
) -> None:
    groups = [
        group(n, prompt, lengths, [1.0] + [0.0] * (len(lengths) - 1)) for n, (prompt, lengths) in enumerate(shapes)
    ]
    batches = list(micro_batches(prepare(groups, Learner()), micro_tokens, Rectangles))
    for batch in batches:
        padded = batch.packing.prompts.numel() + batch.packing.queries.numel()
        assert padded <= micro_tokens or len(batch.packing.queries) == 1
        assert len(batch.tokens) == len(batch.packing.prompt_positions) + len(batch.targets)
    behaviour = sorted(float(value) for batch in batches for value in batch.behaviour)
    expected = sorted(float(value) for item in groups for sample in item.samples for value in sample.logprobs)
    assert behaviour == expected


def test_a_group_without_differences_is_skipped_or_kept_in_the_token_count() -> None:
    groups = [group(0), group(1, rewards=(1, 1, 1))]
    skipped, kept = prepare(groups, Learner()), prepare(groups, Learner(zero_variance="keep"))
    assert (len(skipped.groups), skipped.tokens, skipped.zero_variance_groups) == (1, 13, 1)
    assert (len(kept.groups), kept.tokens, kept.zero_variance_groups) == (2, 26, 1)
    assert all(row.advantage == 0 for row in kept.groups[1].rows)


def test_the_weights_of_all_tokens_and_the_divisor_give_the_normalisation_by_name() -> None:
    groups = [group(0, lengths=(4, 6, 3)), group(1, lengths=(1, 2), rewards=(1, 0))]
    by_name = {"tokens": ([1.0] * 16, 16), "samples": ([1 / 4] * 4 + [1 / 6] * 6 + [1 / 3] * 3 + [1, 0.5, 0.5], 5)}
    by_name["constant"] = ([1.0] * 16, 5 * 8)
    for name, (weights, divisor) in by_name.items():
        update = prepare(groups, Learner.model_validate({"normalise": name, "normalise_tokens": 8}))
        (batch,) = micro_batches(update, 1_000, Rectangles)
        assert sorted(batch.weights.tolist()) == pytest.approx(sorted(weights)), name
        assert update.divisor == divisor


def test_a_sample_that_was_cut_off_is_masked_and_its_reward_counts() -> None:
    item = group(7, lengths=(5, 2, 3), rewards=(1, 0, 0))
    cut_off = replace(item, samples=(replace(item.samples[0], finish="length"), *item.samples[1:]))
    update = prepare([cut_off], Learner(advantage="mean", truncated="mask"))
    assert [row.advantage for row in update.rows] == pytest.approx([-1 / 3] * 2)
    assert update.tokens == update.divisor == 5
    alone = replace(cut_off, samples=tuple(replace(one, finish="length") for one in item.samples))
    assert prepare([alone], Learner(truncated="mask")).groups == ()


def test_long_samples_lose_reward_before_the_group_is_compared() -> None:
    item = group(7, lengths=(4, 6, 8), rewards=(1, 1, 1))
    update = prepare([item], Learner(advantage="mean", long_from=4, long_until=8))
    assert [row.advantage for row in update.rows] == pytest.approx([0.5, 0.0, -0.5])


def test_each_target_has_the_version_that_drew_it_and_each_sample_its_targets() -> None:
    item = with_observed(group(7, prompt=3, lengths=(5, 2), rewards=(1, 0)), [(1, 3)], [])
    first = replace(item.samples[0], spans=(Span(0, 4), Span(2, 6), Span(4, 7)))
    (batch,) = micro_batches(prepare([replace(item, samples=(first, item.samples[1]))], Learner()), 100, Rectangles)
    assert batch.versions.tolist() == [4, 6, 7, 0, 0]
    assert batch.lengths.tolist() == [3, 2]


def test_what_was_observed_is_read_but_is_no_target_and_does_not_count() -> None:
    item = with_observed(group(7, prompt=3, lengths=(5, 2), rewards=(1, 0)), [(1, 3)], [])
    update = prepare([item], Learner(advantage="mean"))
    (batch,) = micro_batches(update, 100, Rectangles)
    first, second = item.samples
    assert update.tokens == 5
    assert batch.targets.tolist() == [*first.tokens[[0, 3, 4]], *second.tokens]
    assert batch.behaviour.tolist() == [*first.logprobs[[0, 3, 4]], *second.logprobs]
    assert batch.advantages.tolist() == [0.5] * 3 + [-0.5] * 2
    assert batch.tokens.tolist() == [*item.prompt, *first.tokens[:-1], item.prompt[-1], *second.tokens[:-1]]
    assert batch.outputs.tolist() == [2, 5, 6, 7, 8]


def test_samples_carry_their_own_behaviour_log_probabilities_and_advantages() -> None:
    item = group(7, prompt=3, lengths=(2, 1), rewards=(1, 0))
    (batch,) = micro_batches(prepare([item], Learner(advantage="mean")), 100, Rectangles)
    first, second = item.samples
    assert batch.targets.tolist() == [*first.tokens, *second.tokens]
    assert batch.behaviour.tolist() == [*first.logprobs, *second.logprobs]
    assert batch.advantages.tolist() == [0.5, 0.5, -0.5]
    assert batch.positions.tolist() == [0, 1, 2, 3, 2]
    assert isinstance(first, Sample)
