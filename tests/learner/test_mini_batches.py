"""An update of several mini-batches takes one optimizer step on each, as a slow reference in float64 does.

The reference knows neither packing nor micro-batches: it computes each sample's text by itself, with transformers' own
model and torch's AdamW.
"""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from itertools import chain
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from echo_queue.config import Learner
from echo_queue.records import Group
from learner.batch.mini_batches import mini_batches
from learner.batch.prepare import prepare
from learner.model.loading import prepare as for_scorer
from learner.model.policy import Policy
from learner.update import UpdateResult, learn
from learner.update.passes import Passes
from tests.learner.states import restore, state_of
from tests.learner.synthetic import group, tiny_model

TEMPERATURE = 0.9
SILENT = group(9, rewards=(1, 1, 1))
GROUPS = [group(0), SILENT, *(group(number, 2 + number, (4, 7, 1 + number), (1, 0, 0.5)) for number in range(1, 7))]
"""Seven groups that teach, and one that does not."""
CASES: Mapping[str, dict[str, Any]] = {
    "dapo": {"mini_batches": 3},
    "decoupled": {"mini_batches": 3, "correction": {"preset": "decoupled-ppo"}, "normalise": "samples"},
    "m2po": {"mini_batches": 2, "correction": {"preset": "m2po"}},
    "more than groups": {"mini_batches": 16},
}


def settings_of(**values: object) -> Learner:
    return Learner.model_validate({"lr": 3e-3, "weight_decay": 0.1, "micro_tokens": 40} | values)


def in_float64(settings: Learner) -> Policy:
    return Policy(for_scorer(tiny_model().double()), settings, torch.float64)


class OnGpu(Tensor):
    """Stands for a tensor on a GPU: it tells what is called with it, and leaves the GPU by `cpu`."""

    calls: ClassVar[list[str]] = []

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.calls.append(function.__name__)
        result = super().__torch_function__(function, types, args, kwargs)
        return result.as_subclass(Tensor) if function.__name__ == "cpu" else result


def test_m2pos_limit_is_found_by_one_read_of_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = settings_of(correction={"preset": "m2po"})
    policy, update = in_float64(settings), prepare(GROUPS[:1], settings)
    passes = Passes(policy, update, settings, number=1, temperature=TEMPERATURE, reference=None)
    log_ratios = torch.randn(13, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    found = []
    for kind in (Tensor, OnGpu):
        monkeypatch.setattr(passes, "gathered", lambda _found, kind=kind: log_ratios.as_subclass(kind))
        OnGpu.calls.clear()
        found.append(passes.second_moment_limit(nullcontext))
    assert OnGpu.calls == ["cpu"]
    assert found[0] == found[1] < np.inf


class Drawn(NamedTuple):
    """A sample of the reference: its text, and log μ of its tokens [T]."""

    text: Tensor
    behaviour: Tensor
    advantage: float


def drawn(item: Group) -> list[Drawn]:
    rewards = torch.tensor([float(sample.reward) for sample in item.samples])
    advantages = (rewards - rewards.mean()) / (rewards.std() + 1e-4)
    return [
        Drawn(
            torch.tensor(np.concatenate([item.prompt, sample.tokens])).long(),
            torch.tensor(sample.logprobs).double(),
            float(advantage),
        )
        for sample, advantage in zip(item.samples, advantages, strict=True)
    ]


class Reference:
    """A plain learner. It keeps the log-ratios of its last update's tokens, each before its step, and the norms."""

    def __init__(self, settings: Learner) -> None:
        self.model, self._settings = tiny_model().double(), settings
        parameters = list(self.model.parameters())
        wide, narrow = [p for p in parameters if p.ndim >= 2], [p for p in parameters if p.ndim < 2]
        parts = [{"params": wide, "weight_decay": 0.1}, {"params": narrow, "weight_decay": 0.0}]
        self._optimizer = torch.optim.AdamW(parts, lr=settings.lr, betas=settings.betas)
        self.log_ratios: list[Tensor] = []
        self.norms: list[float] = []

    def update(self, groups: Sequence[Group]) -> None:
        self.log_ratios, self.norms = [], []
        teaching = [drawn(item) for item in groups if item is not SILENT]
        count = self._settings.mini_batches
        with torch.no_grad():
            begun = [[self._logprobs(sample) for sample in samples] for samples in teaching]
        for first in range(min(count, len(teaching))):
            places = range(first, len(teaching), count)
            self._step(list(chain(*(teaching[n] for n in places))), list(chain(*(begun[n] for n in places))))

    def _step(self, samples: Sequence[Drawn], begun: Sequence[Tensor]) -> None:
        found = [self._logprobs(sample) for sample in samples]
        apart = [now - sample.behaviour for now, sample in zip(found, samples, strict=True)]
        self.log_ratios += [one.detach() for one in apart]
        match self._settings.correction.preset:
            case "dapo":
                losses = [clipped(one, sample, 0.28) for one, sample in zip(apart, samples, strict=True)]
            case "m2po":
                limit = limit_of(apart, samples)
                losses = [trusted(one, sample, limit) for one, sample in zip(apart, samples, strict=True)]
            case _:
                losses = [decoupled(*one) for one in zip(found, begun, samples, strict=True)]
        by_sample = self._settings.normalise == "samples"
        total = torch.stack([loss.mean() for loss in losses]) if by_sample else torch.cat(losses)
        self._optimizer.zero_grad()
        total.mean().backward()
        self.norms.append(float(torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)))
        self._optimizer.step()

    def _logprobs(self, sample: Drawn) -> Tensor:
        tokens = len(sample.behaviour)
        scores = torch.log_softmax(self.model(sample.text[None]).logits[0] / TEMPERATURE, -1)[-tokens - 1 : -1]
        return scores.gather(-1, sample.text[-tokens:, None])[:, 0]


def clipped(log_ratio: Tensor, sample: Drawn, high: float) -> Tensor:
    ratio = log_ratio.exp()
    return -torch.minimum(ratio * sample.advantage, ratio.clamp(0.8, 1 + high) * sample.advantage)


def decoupled(logprobs: Tensor, begun: Tensor, sample: Drawn) -> Tensor:
    """The proximal policy is the one at the update's beginning (arXiv 2505.24298)."""
    return (begun - sample.behaviour).exp().clamp(max=5.0) * clipped(logprobs - begun, sample, 0.2)


def trusted(log_ratio: Tensor, sample: Drawn, limit: float) -> Tensor:
    kept = (log_ratio * sample.advantage <= 0) | (log_ratio.square() < limit)
    return -log_ratio.exp() * sample.advantage * kept


def limit_of(apart: Sequence[Tensor], samples: Sequence[Drawn]) -> float:
    """Leaves the largest out one by one, of the mini-batch that the step trains."""
    away = [one[one * sample.advantage > 0] for one, sample in zip(apart, samples, strict=True)]
    moments, left_out = sorted(torch.cat(away).square().tolist()), float("inf")
    while moments and np.mean(moments) > 0.04:
        left_out = moments.pop()
    return left_out


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_each_mini_batch_gets_a_step_of_its_own(name: str) -> None:
    settings = settings_of(**CASES[name])
    policy, reference = in_float64(settings), Reference(settings)
    for number in (1, 2):
        result = learn(policy, GROUPS, number, settings, TEMPERATURE)
        reference.update(GROUPS)
        assert result.steps == len(reference.norms) == min(7, settings.mini_batches)
        check_figures(result, reference)
    for key, weight in reference.model.named_parameters():
        assert (policy.masters[key] - weight).norm() <= 1e-6 * weight.norm(), key


def check_figures(result: UpdateResult, reference: Reference) -> None:
    """Each token's ratio is the one before the step that trained it."""
    log_ratios = torch.cat(reference.log_ratios)
    assert result.grad_norm == pytest.approx(np.mean(reference.norms), rel=1e-6)
    assert result.sums.tokens == len(log_ratios)
    assert result.sums.kl_behaviour == pytest.approx(-float(log_ratios.sum()), rel=1e-6)
    assert result.ratios.second_moment == pytest.approx(float(log_ratios.square().mean()), rel=1e-6)
    ((_, quantiles),) = result.ratios.by_lag
    assert quantiles == pytest.approx(np.exp(np.quantile(log_ratios, (0.01, 0.5, 0.99))), rel=1e-6)


def test_groups_are_dealt_out_evenly_in_turn_and_each_once() -> None:
    update = prepare(GROUPS, Learner())
    parts = mini_batches(update, settings_of(mini_batches=3))
    assert [len(part.groups) for part in parts] == [3, 2, 2]
    assert [part.groups[0] for part in parts] == list(update.groups[:3])
    assert {id(one) for part in parts for one in part.groups} == {id(one) for one in update.groups}
    assert sum(part.tokens for part in parts) == update.tokens
    assert mini_batches(prepare([SILENT], Learner()), settings_of(mini_batches=3)) == []


def test_one_mini_batch_is_the_whole_update() -> None:
    update = prepare(GROUPS, Learner())
    (whole,) = mini_batches(update, Learner())
    assert (whole.groups, whole.tokens, whole.divisor) == (update.groups, update.tokens, update.divisor)


def test_a_policy_restored_between_updates_goes_on_bit_for_bit() -> None:
    settings = settings_of(**CASES["decoupled"])
    first, second = (Policy(for_scorer(tiny_model(seed)), settings) for seed in (0, 5))
    learn(first, GROUPS, 1, settings, TEMPERATURE)
    restore(second, state_of(first))
    for policy in (first, second):
        learn(policy, GROUPS[:5], 2, settings, TEMPERATURE)
    expected = state_of(first)
    assert [name for name, tensor in state_of(second).items() if not torch.equal(tensor, expected[name])] == []
