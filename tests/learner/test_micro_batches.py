from hypothesis import given, settings
from hypothesis import strategies as st

from echo_queue.records import Sample
from learner.micro_batches import micro_batches, prepare
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
    assert (len(skipped.groups), skipped.tokens, skipped.zero_variance_groups) == (1, 13, 1)
    assert (len(kept.groups), kept.tokens, kept.zero_variance_groups) == (2, 26, 1)
    assert all(row.advantage == 0 for row in kept.groups[1].rows)


def test_what_was_observed_is_read_but_is_no_target_and_does_not_count() -> None:
    item = with_observed(group(7, prompt=3, lengths=(5, 2), rewards=(1, 0)), [(1, 3)], [])
    update = prepare([item], "mean", "skip")
    (batch,) = micro_batches(update, 100)
    first, second = item.samples
    assert update.tokens == 5
    assert batch.targets.tolist() == [*first.tokens[[0, 3, 4]], *second.tokens]
    assert batch.behaviour.tolist() == [*first.logprobs[[0, 3, 4]], *second.logprobs]
    assert batch.advantages.tolist() == [0.5] * 3 + [-0.5] * 2
    assert batch.tokens.tolist() == [*item.prompt, *first.tokens[:-1], item.prompt[-1], *second.tokens[:-1]]
    assert batch.outputs.tolist() == [2, 5, 6, 7, 8]


def test_samples_carry_their_own_behaviour_log_probabilities_and_advantages() -> None:
    item = group(7, prompt=3, lengths=(2, 1), rewards=(1, 0))
    (batch,) = micro_batches(prepare([item], "mean", "skip"), 100)
    first, second = item.samples
    assert batch.targets.tolist() == [*first.tokens, *second.tokens]
    assert batch.behaviour.tolist() == [*first.logprobs, *second.logprobs]
    assert batch.advantages.tolist() == [0.5, 0.5, -0.5]
    assert batch.positions.tolist() == [0, 1, 2, 3, 2]
    assert isinstance(first, Sample)
