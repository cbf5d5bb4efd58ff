"""The plan for several ranks, on made-up updates of which only the lengths matter."""

from collections.abc import Iterator, Sequence
from itertools import pairwise, product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import GPT2Config, PretrainedConfig, Qwen3Config, Qwen3MoeConfig

from echo_queue.config import Learner
from echo_queue.config.corrections import PRESETS
from learner.batch.micro_batches import collate, micro_batches
from learner.batch.packing import Packing
from learner.batch.plan import FILLER, Costs, Pieces, Share, plan
from learner.batch.prepare import PromptSamples, SampleRow, Update, prepare
from learner.losses.inputs import LossInputs
from learner.losses.objective import token_losses
from learner.model.attention.rectangles import Rectangles
from learner.model.attention.varlen import VariableLength
from learner.model.loading import prepare as for_scorer
from learner.model.scorer import Scorer
from tests.learner.synthetic import VOCABULARY, group, tiny_model

LINEAR = Costs(per_token=1.0, per_pair=0.0)
LARGE = Costs.of(Qwen3Config(hidden_size=4096, num_hidden_layers=36, num_attention_heads=32, intermediate_size=12_288))
NO_LIMIT = 1 << 30

Shape = tuple[int, Sequence[int]]
"""A prompt's length and its samples' lengths."""
SHAPES = st.lists(st.tuples(st.integers(1, 30), st.lists(st.integers(1, 40), min_size=1, max_size=6)), max_size=12)
RANKS = st.integers(1, 8)
COSTS = st.sampled_from([LINEAR, LARGE, Costs(per_token=1.0, per_pair=0.1, per_target=2.0)])
PACKINGS = st.sampled_from([Rectangles, VariableLength])


def made_up(shapes: Sequence[Shape], observed: bool = False) -> Update:
    """An update of this shape. The n-th sample of all has the advantage n, which tells it from the others."""
    numbers = iter(range(1 << 30))
    groups = tuple(
        PromptSamples(
            np.full(prompt, place, np.int32), tuple(row(length, next(numbers), not observed) for length in lengths)
        )
        for place, (prompt, lengths) in enumerate(shapes)
    )
    return Update(groups, 0 if observed else sum(sum(lengths) for _, lengths in shapes), 0)


def row(length: int, number: int, drawn: bool) -> SampleRow:
    return SampleRow(np.zeros(length, np.int32), np.zeros(length, np.float32), np.full(length, drawn), float(number))


def outline(shares: Sequence[Share]) -> list[list[list[tuple[int, list[float]]]]]:
    """Lists, for each micro-batch of each rank, the groups and the samples in it."""
    return [[[(int(p.prompt[0]), numbers(p)) for p in batch] for batch in share] for share in shares]


def numbers(piece: PromptSamples) -> list[float]:
    return [row.advantage for row in piece.rows]


def trained(shares: Sequence[Share]) -> Iterator[Pieces]:
    """All micro-batches that are no fillers."""
    return (batch for share in shares for batch in share if batch is not FILLER)


def size(batch: Pieces, packing: type[Packing]) -> int:
    """The tokens of a micro-batch as `packing` pays for them."""
    prompts, samples = ([len(p.prompt) - 1 for p in batch], [len(row.tokens) for p in batch for row in p.rows])
    if packing is VariableLength:
        return sum(prompts) + sum(samples)
    return len(prompts) * max(prompts) + len(samples) * max(samples)


def time(shares: Sequence[Share], costs: Costs) -> float:
    """Returns the cost of the update if every step takes as long as its largest micro-batch."""
    return sum(max(map(costs.total, step)) for step in zip(*shares, strict=True))


def alone(update: Update, costs: Costs) -> list[float]:
    """Returns the cost of each sample with a prompt of its own."""
    return [costs.total((PromptSamples(g.prompt, (row,)),)) for g in update.groups for row in g.rows]


# Any update --------------------------------------------------------------------------------------------------------


@settings(max_examples=100, deadline=None)
@given(SHAPES, RANKS, st.integers(1, 300), PACKINGS, COSTS)
def test_each_sample_is_trained_by_one_rank_and_all_ranks_take_as_many_steps(
    shapes: list[Shape], ranks: int, micro_tokens: int, packing: type[Packing], costs: Costs
) -> None:
    update = made_up(shapes)
    shares = plan(update, ranks, micro_tokens, packing, costs)
    assert len(shares) == ranks
    assert len({len(share) for share in shares}) == 1
    found = [(int(p.prompt[0]), number) for batch in trained(shares) for p in batch for number in numbers(p)]
    assert sorted(found) == [(int(g.prompt[0]), number) for g in update.groups for number in numbers(g)]


@settings(max_examples=100, deadline=None)
@given(SHAPES, RANKS, st.integers(1, 300), PACKINGS, COSTS)
def test_no_micro_batch_is_too_large_and_none_holds_a_prompt_twice(
    shapes: list[Shape], ranks: int, micro_tokens: int, packing: type[Packing], costs: Costs
) -> None:
    for batch in trained(plan(made_up(shapes), ranks, micro_tokens, packing, costs)):
        assert size(batch, packing) <= micro_tokens or sum(len(piece.rows) for piece in batch) == 1
        assert len({int(piece.prompt[0]) for piece in batch}) == len(batch)


@settings(max_examples=50, deadline=None)
@given(SHAPES, RANKS, st.integers(1, 300), PACKINGS, COSTS)
def test_the_same_update_is_planned_in_the_same_way(
    shapes: list[Shape], ranks: int, micro_tokens: int, packing: type[Packing], costs: Costs
) -> None:
    plans = [plan(made_up(shapes), ranks, micro_tokens, packing, costs) for _ in range(2)]
    assert outline(plans[0]) == outline(plans[1])


# One rank ------------------------------------------------------------------------------------------------------------


@settings(max_examples=100, deadline=None)
@given(SHAPES, st.integers(1, 300), PACKINGS)
def test_one_rank_fills_each_micro_batch_with_the_longest_that_are_left(
    shapes: list[Shape], micro_tokens: int, packing: type[Packing]
) -> None:
    """This leaves only one way to cut an update."""
    update = made_up(shapes)
    (share,) = plan(update, 1, micro_tokens, packing, LINEAR)
    pieces = [piece for batch in share for piece in batch]
    longest_first = [
        row.advantage
        for g in sorted(update.groups, key=lambda g: -max(len(row.tokens) for row in g.rows))
        for row in sorted(g.rows, key=lambda row: -len(row.tokens))
    ]
    assert [number for piece in pieces for number in numbers(piece)] == longest_first
    for piece, after in pairwise(pieces):
        if piece.prompt is after.prompt:
            assert size((PromptSamples(piece.prompt, (*piece.rows, after.rows[0])),), packing) > micro_tokens
    for batch, following in pairwise(share):
        assert size((*batch, following[0]), packing) > micro_tokens


SHORT_AND_LONG: list[Shape] = [(5, (4, 30, 9)), (1, (2, 2)), (12, (31, 6, 31, 1)), (3, (16,)), (8, (7, 7, 40))]


CUT_BY_66 = {
    Rectangles: [
        [(4, [12])], [(4, [10, 11])], [(2, [5])], [(2, [7])], [(2, [6, 8])], [(0, [1, 2])], [(0, [0]), (3, [9])],
        [(1, [3, 4])],
    ],
    VariableLength: [
        [(4, [12, 10, 11])], [(2, [5])], [(2, [7, 6, 8])], [(0, [1, 2, 0]), (3, [9])], [(1, [3, 4])]
    ],
}  # fmt: skip
"""The micro-batches of at most 66 tokens as they were when a learner was always one process."""


@pytest.mark.parametrize("packing", CUT_BY_66)
def test_one_rank_has_the_micro_batches_that_a_single_process_always_had(packing: type[Packing]) -> None:
    (share,) = outline(plan(made_up(SHORT_AND_LONG), 1, 66, packing, LARGE))
    assert share == CUT_BY_66[packing]


def test_a_process_alone_collates_the_same_micro_batches() -> None:
    update = prepare([group(0), group(1, prompt=9, lengths=(3, 20, 8)), group(2, lengths=(1, 2, 3))], Learner())
    (share,) = plan(update, 1, 40, Rectangles, LINEAR)
    for pieces, batch in zip(share, micro_batches(update, 40, Rectangles), strict=True):
        assert torch.equal(collate(pieces, Rectangles).tokens, batch.tokens)


# Balance -------------------------------------------------------------------------------------------------------------


@settings(max_examples=100, deadline=None)
@given(SHAPES.filter(bool), RANKS, COSTS)
def test_no_update_takes_longer_than_the_mean_and_its_largest_sample(
    shapes: list[Shape], ranks: int, costs: Costs
) -> None:
    """The bound of any list schedule, and the 5 % by which the bound is raised."""
    update = made_up(shapes)
    samples = alone(update, costs)
    taken = time(plan(update, ranks, NO_LIMIT, VariableLength, costs), costs)
    if ranks > 1:
        assert taken <= 1.05 * (sum(samples) / ranks + max(samples)) * (1 + 1e-9)


@settings(max_examples=100, deadline=None)
@given(SHAPES.filter(bool), RANKS, st.integers(1, 300), PACKINGS, COSTS)
def test_with_micro_tokens_it_takes_no_longer_than_the_mean_and_the_largest_micro_batch(
    shapes: list[Shape], ranks: int, micro_tokens: int, packing: type[Packing], costs: Costs
) -> None:
    update = made_up(shapes)
    shares = plan(update, ranks, micro_tokens, packing, costs)
    loads = [costs.total(batch) for share in shares for batch in share]
    assert time(shares, costs) <= (sum(loads) / ranks + max(loads)) * (1 + 1e-9)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=7), st.integers(2, 3))
def test_groups_of_one_sample_take_at_most_four_thirds_of_the_shortest_time(lengths: list[int], ranks: int) -> None:
    """Graham's bound of longest processing time first."""
    update = made_up([(1, [length]) for length in lengths])
    ways = product(range(ranks), repeat=len(lengths))
    best = min(max(sum(n for n, at in zip(lengths, way, strict=True) if at == r) for r in range(ranks)) for way in ways)
    filler = LINEAR.total(FILLER)
    assert time(plan(update, ranks, NO_LIMIT, VariableLength, LINEAR), LINEAR) <= max(4 / 3 * best, filler)


def mix(prompts: int, samples: int, median: float, longest: int) -> Update:
    """An update with prompts of 64 to 512 tokens, whose samples' lengths are lognormal."""
    draw = np.random.default_rng(0)
    lengths = [
        np.clip(draw.lognormal(np.log(median * draw.lognormal(0, 0.4)), 0.6, samples), 16, longest).astype(int).tolist()
        for _ in range(prompts)
    ]
    return made_up([(int(draw.integers(64, 512)), own) for own in lengths])


@pytest.mark.parametrize("ranks", [2, 4, 8, 16])
@pytest.mark.parametrize(("median", "longest"), [(900, 4096), (6000, 32_768)])
def test_ragged_updates_are_balanced_within_five_percent(median: float, longest: int, ranks: int) -> None:
    update = mix(64, 16, median, longest)
    shares = plan(update, ranks, 65_536, VariableLength, LARGE)
    loads = [sum(map(LARGE.total, share)) for share in shares]
    assert max(loads) <= 1.05 * sum(loads) / ranks
    assert time(shares, LARGE) <= 1.07 * LARGE.total(update.groups) / ranks


def test_loads_are_balanced_not_tokens() -> None:
    """Where pairs alone cost, four samples of half the length are as much as one."""
    update = made_up([(1, [1000]), *((1, [500]) for _ in range(4))])
    first, second = outline(plan(update, 2, NO_LIMIT, VariableLength, Costs(per_token=0.0, per_pair=1.0)))
    assert sorted([[number for _, (number,) in batch] for (batch,) in (first, second)]) == [[0], [1, 2, 3, 4]]


def test_small_samples_fill_the_gaps_that_large_ones_leave() -> None:
    update = made_up([(1, [10] * 10), (1, [90]), (1, [90])])
    assert time(plan(update, 2, NO_LIMIT, VariableLength, LINEAR), LINEAR) == 140


# Prompts stay together -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [2, 3, 4, 6])
def test_a_prompts_samples_stay_together_where_the_ranks_are_balanced(ranks: int) -> None:
    shares = plan(made_up([(20, [30, 20, 10])] * 12), ranks, 1000, VariableLength, LARGE)
    assert sorted(place for batch in trained(shares) for place, _ in outline([(batch,)])[0][0]) == list(range(12))


def test_a_prompts_samples_are_divided_among_ranks_that_would_be_unbalanced() -> None:
    shares = plan(made_up([(3, [30] * 8), (3, [30] * 4)]), 3, NO_LIMIT, VariableLength, LARGE)
    assert [sum(len(p.rows) for p in batch) for batch in trained(shares)] == [4, 4, 4]


def test_a_long_prompt_is_not_repeated_for_a_balance_that_it_would_spoil() -> None:
    shares = plan(made_up([(2000, [10] * 4)] * 5), 4, NO_LIMIT, VariableLength, LINEAR)
    assert sum(len(batch) for batch in trained(shares)) == 5
    assert time(shares, LINEAR) < 2 * 2050


# Edges ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [1, 2, 8])
def test_an_update_without_groups_has_no_steps(ranks: int) -> None:
    assert plan(made_up([]), ranks, 100, Rectangles, LARGE) == ((),) * ranks


def test_ranks_without_a_sample_get_fillers() -> None:
    shares = plan(made_up([(5, [9, 4]), (3, [6])]), 8, 100, Rectangles, LARGE)
    assert [len(share) for share in shares] == [1] * 8
    assert [len(batch) for batch in trained(shares)] == [1] * 3


def test_one_enormous_sample_leaves_the_others_to_the_other_ranks() -> None:
    update = made_up([(5, [100_000, 10, 10]), (5, [10] * 5)])
    shares = plan(update, 3, 1000, VariableLength, LARGE)
    alone_there = next(share for share in outline(shares) if share[0][0][1][0] == 0)
    assert alone_there[0] == [(0, [0])]
    assert time(shares, LARGE) <= 1.01 * max(alone(update, LARGE))


def test_samples_without_a_drawn_token_are_planned_like_others() -> None:
    shares = plan(made_up([(5, [9, 4]), (3, [6])], observed=True), 3, 100, Rectangles, LARGE)
    assert sorted(number for batch in trained(shares) for p in batch for number in numbers(p)) == [0, 1, 2]


# Gradients -----------------------------------------------------------------------------------------------------------


def gradients(share: Share) -> dict[str, torch.Tensor]:
    model = for_scorer(tiny_model())
    for pieces in share:
        batch = collate(pieces, Rectangles)
        (Scorer(model)(batch, 1.0).logprobs * batch.advantages).sum().backward()
    return {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}


def test_a_filler_runs_forward_and_backward_to_zero_gradients() -> None:
    batch = collate(FILLER, Rectangles)
    assert batch.targets.numel() == 0
    assert int(batch.tokens.max()) < VOCABULARY
    found = gradients((FILLER,))
    assert found.keys() == dict(tiny_model().named_parameters()).keys()
    assert not any(gradient.any() for gradient in found.values())


def test_a_filler_has_no_loss_and_no_figures() -> None:
    batch = collate(FILLER, VariableLength)
    none = torch.zeros(0)
    inputs = LossInputs(none, batch.behaviour, batch.advantages, batch.versions, batch.lengths, none)
    for preset in PRESETS:
        settings = Learner.model_validate({"kl": 0.1, "correction": {"preset": preset, "filter_high": 2.0}})
        assert [float(term.sum()) for term in token_losses(inputs, settings)] == [0, 0, 0, 0]


@pytest.mark.parametrize("ranks", [2, 3, 16])
def test_the_gradients_of_all_ranks_add_up_to_those_of_one(ranks: int) -> None:
    groups = [group(n, prompt=4 * n + 1, lengths=(4, 9, 1 + n)) for n in range(3)]
    update = prepare(groups, Learner(zero_variance="keep"))
    (whole,), shares = plan(update, 1, 30, Rectangles, LINEAR), plan(update, ranks, 30, Rectangles, LINEAR)
    expected, of_ranks = gradients(whole), [gradients(share) for share in shares]
    for name, gradient in expected.items():
        total = torch.stack([of_rank[name] for of_rank in of_ranks]).sum(0)
        torch.testing.assert_close(total, gradient, atol=1e-5, rtol=1e-4, msg=name)


# Costs ---------------------------------------------------------------------------------------------------------------


def test_costs_count_the_weights_that_a_token_is_multiplied_with() -> None:
    model = tiny_model()
    layers = sum(p.numel() for name, p in model.named_parameters() if ".layers." in name and p.ndim >= 2)
    assert Costs.of(model.config) == Costs(6 * layers, per_pair=12 * 2 * 32, per_target=6 * 32 * VOCABULARY)


def test_only_experts_that_a_token_is_routed_to_cost() -> None:
    small, large = (Costs.of(Qwen3MoeConfig(num_experts=64, num_experts_per_tok=used)) for used in (4, 8))
    assert small.per_token < large.per_token < 2 * small.per_token


@pytest.mark.parametrize("config", [GPT2Config(), Qwen3Config()])
def test_costs_of_families_that_the_estimate_does_not_know_are_of_the_right_size(config: PretrainedConfig) -> None:
    costs = Costs.of(config)
    assert 1e8 < costs.per_token < 1e11
    assert 0 < costs.per_pair < costs.per_token
    assert costs.per_target == 6 * config.vocab_size * config.hidden_size


def test_a_prompt_counts_once_in_each_micro_batch() -> None:
    costs = Costs(per_token=1.0, per_pair=100.0, per_target=10_000.0)
    piece = made_up([(4, [2, 1])]).groups[0]
    pairs = (1 + 2 + 3) + (4 + 5) + 4
    assert costs.total((piece,)) == (3 + 2 + 1) + 100 * pairs + 10_000 * 3
