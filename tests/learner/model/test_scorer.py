import pytest
import torch
from torch import Tensor
from transformers import (
    PreTrainedModel,
)

from echo_queue.config import Learner
from echo_queue.records import Group
from learner.batch.micro_batches import micro_batches
from learner.batch.prepare import prepare
from learner.model.attention.rectangles import Rectangles
from learner.model.loading import prepare as for_scorer
from learner.model.scorer import LOGITS_AT_ONCE, Scorer
from tests.learner.synthetic import group, tiny_model, with_observed

UNEVEN = [
    group(0, prompt=5, lengths=(4, 9, 1), rewards=(1, 0, 0)),
    group(1, prompt=1, lengths=(2, 2, 7), rewards=(0, 1, 0)),
    group(2, prompt=11, lengths=(6, 3, 5), rewards=(0, 1, 1)),
]

TURNS = [
    with_observed(UNEVEN[0], [(1, 2)], [(2, 4), (6, 7)], []),
    with_observed(UNEVEN[1], [], [(1, 2)], [(1, 6)]),
    UNEVEN[2],
]
"""The same with observations, one of them at a sample's end."""


def plain(model: PreTrainedModel, groups: list[Group], temperature: float) -> dict[tuple[int, ...], Tensor]:
    """Log-probabilities of what the model drew, by one ordinary forward pass per sample, keyed by its text."""
    scores = {}
    for item in groups:
        for sample in item.samples:
            text = [*item.prompt.tolist(), *sample.tokens.tolist()]
            logits = model(torch.tensor([text])).logits[0, len(item.prompt) - 1 : -1].float() / temperature
            targets = torch.from_numpy(sample.tokens).long()
            observed = {place for part in sample.observed for place in range(*part)}
            drawn = [place for place in range(len(targets)) if place not in observed]
            scores[tuple(text)] = torch.log_softmax(logits, -1).gather(-1, targets[:, None])[drawn, 0]
    return scores


def shared(model: PreTrainedModel, groups: list[Group], temperature: float, micro_tokens: int) -> Tensor:
    """Sum of logprob × advantage over the update, as the learner computes it."""
    update = prepare(groups, Learner(zero_variance="keep"))
    sums = [
        (Scorer(model)(batch, temperature).logprobs * batch.advantages).sum()
        for batch in micro_batches(update, micro_tokens, Rectangles)
    ]
    return torch.stack(sums).sum() / update.tokens


def plain_sum(model: PreTrainedModel, groups: list[Group], temperature: float) -> Tensor:
    scores = iter(plain(model, groups, temperature).values())
    update = prepare(groups, Learner(zero_variance="keep"))
    total = [next(scores).sum() * row.advantage for part in update.groups for row in part.rows]
    return torch.stack(total).sum() / update.tokens


def gradients(model: PreTrainedModel, value: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    value.backward()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.grad is not None}


@pytest.mark.parametrize("micro_tokens", [1, 30, 60, 10_000])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("groups", [UNEVEN, TURNS], ids=["one turn", "turns"])
def test_shared_prompts_give_the_gradients_of_a_plain_forward_pass(
    groups: list[Group], micro_tokens: int, temperature: float
) -> None:
    """The gradients are those of a loss that leaves out what was observed."""
    expected = gradients(model := tiny_model(), plain_sum(model, groups, temperature))
    model = for_scorer(tiny_model())
    found = gradients(model, shared(model, groups, temperature, micro_tokens))
    assert found.keys() == expected.keys()
    for name in expected:
        torch.testing.assert_close(found[name], expected[name], atol=1e-5, rtol=1e-4, msg=name)


@pytest.mark.parametrize("groups", [UNEVEN, TURNS], ids=["one turn", "turns"])
def test_every_token_drawn_gets_the_log_probability_of_a_plain_forward_pass(groups: list[Group]) -> None:
    expected = torch.cat(list(plain(tiny_model(), groups, 0.9).values())).sort().values
    model = for_scorer(tiny_model())
    batches = micro_batches(prepare(groups, Learner(zero_variance="keep")), 10_000, Rectangles)
    found = torch.cat([Scorer(model)(batch, 0.9).logprobs for batch in batches]).sort().values
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


def test_prompts_of_a_single_token_need_nothing_shared() -> None:
    groups = [group(3, prompt=1), group(4, prompt=1)]
    model = tiny_model()
    expected = plain_sum(model, groups, 1.0)
    torch.testing.assert_close(shared(for_scorer(tiny_model()), groups, 1.0, 1000), expected)


def test_a_head_computed_in_pieces_gives_the_same_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    model = for_scorer(tiny_model())
    whole = gradients(model, shared(model, UNEVEN, 1.0, 10_000))
    monkeypatch.setitem(LOGITS_AT_ONCE, "cpu", 300)
    pieces = gradients(model, shared(model, UNEVEN, 1.0, 10_000))
    for name in whole:
        torch.testing.assert_close(pieces[name], whole[name], atol=1e-6, rtol=1e-4)


def test_entropy_is_that_of_the_sampling_distribution() -> None:
    model = for_scorer(tiny_model())
    item = group(5, prompt=3, lengths=(1, 1), rewards=(0, 1))
    (batch,) = micro_batches(prepare([item], Learner(advantage="mean")), 100, Rectangles)
    logits = tiny_model()(torch.from_numpy(item.prompt).long()[None]).logits
    expected = torch.distributions.Categorical(logits=logits[0, -1] / 2.0).entropy()
    torch.testing.assert_close(Scorer(model)(batch, 2.0).entropy, expected.expand(2), atol=1e-5, rtol=0)
