"""The corrections for stale data, against slow references in Python's floats, their limiting cases and differences."""

import math
import random
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args

import pytest
import torch

from echo_queue.config import Learner
from echo_queue.config.corrections import PRESETS, USES, PresetName, UseName
from echo_queue.errors import ConfigError
from learner.losses import corrections
from learner.losses.corrections import second_moment_limit
from learner.losses.custom import custom_loss
from learner.losses.inputs import LossInputs
from learner.losses.objective import TokenLosses, token_losses
from tests.source_code import ROOT

SETTINGS: dict[str, dict[str, Any]] = {preset: {"preset": preset} for preset in PRESETS} | {
    "seq-TIS": {"preset": "tis", "level": "product"},
    "seq-IcePop": {"preset": "icepop", "level": "sequence", "mask_low": 0.9, "mask_high": 1.1},
    "GSPO, wide": {"preset": "gspo", "clip_low": 0.1, "clip_high": 0.1},
    "decoupled TIS": {"preset": "tis", "anchor": "proximal", "cap": 1.1},
    "GSPO to the old policy": {"preset": "gspo", "anchor": "old", "cap": 1.1, "clip_low": 0.1, "clip_high": 0.1},
    "filtered": {"preset": "ppo", "filter_low": 0.9, "filter_high": 1.2, "filter_worse": 0.05},
    "none": {"use": "none"},
}
"""`[learner.correction]` of everything that is compared."""
EPSILON = 1e-6


@dataclass(frozen=True)
class Drawn:
    """A sample of the slow reference: the learner's log-probabilities, the behaviour's, and its tokens' lags. The
    version that drew the tokens gives them `mismatch` more than its engine said."""

    logprobs: Sequence[float]
    behaviour: Sequence[float]
    lags: Sequence[int]
    advantage: float
    mismatch: float = 0.0

    @property
    def old(self) -> list[float]:
        return [mu + self.mismatch for mu in self.behaviour]


def drawn(seed: int, apart: float = 0.4, samples: int = 7) -> list[Drawn]:
    draw, engine = random.Random(seed), random.Random(-1 - seed)
    found = []
    for number in range(samples):
        behaviour = [draw.uniform(-4, -0.05) for _ in range(1 + draw.randrange(9))]
        logprobs = [min(-1e-3, mu + draw.gauss(0, apart)) for mu in behaviour]
        advantage = draw.choice([-1.5, -0.5, 0.7, 2.0]) if number else 0.0
        lags = [draw.randrange(5) for _ in behaviour]
        found.append(Drawn(logprobs, behaviour, lags, advantage, mismatch=engine.gauss(0, apart)))
    return found


def inputs_of(samples: Sequence[Drawn], anchor: str = "behaviour") -> LossInputs:
    def flat(values: Any) -> torch.Tensor:
        return torch.tensor([value for sample in samples for value in values(sample)], dtype=torch.float64)

    return LossInputs(
        flat(lambda sample: sample.logprobs).requires_grad_(),
        flat(lambda sample: sample.behaviour),
        flat(lambda sample: [sample.advantage] * len(sample.lags)),
        torch.tensor([lag for sample in samples for lag in sample.lags]),
        torch.tensor([len(sample.lags) for sample in samples]),
        proximal=flat(lambda sample: sample.old) if anchor == "old" else None,
    )


def fast(samples: Sequence[Drawn], settings: Learner) -> tuple[TokenLosses, torch.Tensor]:
    """The learner's losses, and the gradient of their sum."""
    inputs = inputs_of(samples, settings.correction.anchor)
    limit = slow_limit(samples, settings.correction.budget)
    found = token_losses(inputs, settings, limit)
    found.losses.sum().backward()
    assert inputs.logprobs.grad is not None
    return found, inputs.logprobs.grad


def slow_limit(samples: Sequence[Drawn], budget: float) -> float:
    """Leaves the largest out one by one."""
    moments = sorted(
        (now - mu) ** 2
        for sample in samples
        for now, mu in zip(sample.logprobs, sample.behaviour, strict=True)
        if (now - mu) * sample.advantage > 0
    )
    left_out = math.inf
    while moments and math.fsum(moments) / len(moments) > budget:
        left_out = moments.pop()
    return left_out


def slow(samples: Sequence[Drawn], c: Any, frozen: Sequence[Drawn]) -> list[float]:
    """The losses of all tokens, by the equations. What stops the gradient is computed of `frozen`."""
    limit = slow_limit(frozen, c.budget)
    return [
        slow_token(sample, then, place, c, limit)
        for sample, then in zip(samples, frozen, strict=True)
        for place in range(len(sample.lags))
    ]


def slow_token(sample: Drawn, then: Drawn, place: int, c: Any, limit: float) -> float:
    if c.filter_high and slow_filtered(then, c):
        return 0.0
    if c.anchor == "proximal":
        share = then.lags[place] / (then.lags[place] + 1)
        mu = then.behaviour[place]
        proximal = mu + share * (then.logprobs[place] - mu)
        weight = min(math.exp(proximal - mu), c.cap)
        ratio, was = (math.exp(one.logprobs[place] - proximal) for one in (sample, then))
    elif c.anchor == "old":
        weight = min(math.exp(then.mismatch), c.cap)
        ratio, was = (slow_ratio(replace(one, behaviour=one.old), place, c.level) for one in (sample, then))
    else:
        weight, ratio, was = 1.0, slow_ratio(sample, place, c.level), slow_ratio(then, place, c.level)
    a, logprob = sample.advantage, sample.logprobs[place]
    moved = math.exp(then.logprobs[place]) - math.exp(then.behaviour[place])
    match c.use:
        case "none":
            loss = -a * logprob
        case "clip":
            loss = -min(ratio * a, min(max(ratio, 1 - c.clip_low), 1 + c.clip_high) * a)
        case "truncate":
            loss = -min(was, c.cap) * a * logprob
        case "mask":
            loss = -was * a * logprob if c.mask_low <= was <= c.mask_high else 0.0
        case "dppo":
            kept = not (a > 0 and moved > c.delta) and not (a < 0 and moved < -c.delta)
            loss = -ratio * a * kept + c.drift * math.log(ratio) ** 2
        case "m2po":
            apart = then.logprobs[place] - then.behaviour[place]
            loss = -ratio * a if a * apart <= 0 or apart**2 < limit else 0.0
    return weight * loss


def slow_ratio(sample: Drawn, place: int, level: str) -> float:
    apart = [now - mu for now, mu in zip(sample.logprobs, sample.behaviour, strict=True)]
    logs = {"token": apart[place], "sequence": sum(apart) / len(apart), "product": sum(apart)}
    return math.exp(logs[level])


def slow_filtered(sample: Drawn, c: Any) -> bool:
    mean = math.log(slow_ratio(sample, 0, "sequence"))
    outside = not c.filter_low <= math.exp(mean) <= c.filter_high
    return outside or (sample.advantage < 0 and -mean > c.filter_worse)


def settings_of(values: dict[str, Any], **learner: Any) -> Learner:
    return Learner.model_validate({"correction": values, **learner})


def test_every_correction_has_its_words_its_function_and_its_comparison() -> None:
    compared = {settings_of(values).correction.use for values in SETTINGS.values()}
    assert set(get_args(UseName)) == set(USES) == set(corrections.USES) == compared
    assert set(get_args(PresetName)) == set(PRESETS)


@pytest.mark.parametrize("name", SETTINGS)
def test_losses_and_gradients_are_those_of_the_equations(name: str) -> None:
    settings = settings_of(SETTINGS[name])
    for seed in range(5):
        samples = drawn(seed)
        found, gradient = fast(samples, settings)
        assert found.losses.tolist() == pytest.approx(slow(samples, settings.correction, samples), rel=1e-9, abs=1e-12)
        differences = [
            slow_difference(samples, settings.correction, number, place)
            for number, sample in enumerate(samples)
            for place in range(len(sample.lags))
        ]
        assert gradient.tolist() == pytest.approx(differences, rel=1e-5, abs=1e-7)


def slow_difference(samples: list[Drawn], correction: Any, number: int, place: int) -> float:
    """The central difference of the summed loss by one log-probability."""
    totals = []
    for step in (EPSILON, -EPSILON):
        moved = list(samples[number].logprobs)
        moved[place] += step
        changed = [*samples[:number], replace(samples[number], logprobs=moved), *samples[number + 1 :]]
        totals.append(math.fsum(slow(changed, correction, samples)))
    return (totals[0] - totals[1]) / (2 * EPSILON)


@pytest.mark.parametrize("name", SETTINGS)
def test_on_fresh_data_every_correction_is_the_plain_policy_gradient(name: str) -> None:
    samples = [
        replace(sample, logprobs=sample.behaviour, lags=[0] * len(sample.lags), mismatch=0.0) for sample in drawn(3)
    ]
    found, gradient = fast(samples, settings_of(SETTINGS[name]))
    expected = [-sample.advantage for sample in samples for _ in sample.lags]
    assert gradient.tolist() == pytest.approx(expected, abs=1e-12)
    assert not found.clipped.any() and not found.filtered.any()


@pytest.mark.parametrize(
    ("wide", "like"),
    [
        ({"preset": "ppo", "clip_low": 1 - 1e-9, "clip_high": 1e9}, {"preset": "tis", "cap": 1e9}),
        ({"preset": "icepop", "mask_low": 0.0, "mask_high": 1e9}, {"preset": "tis", "cap": 1e9}),
        ({"preset": "dppo", "delta": 1.0, "drift": 0.0}, {"preset": "tis", "cap": 1e9}),
        ({"preset": "m2po", "budget": 1e9}, {"preset": "tis", "cap": 1e9}),
        ({"preset": "ppo", "anchor": "proximal", "clip_high": 1e9, "cap": 1e9}, {"preset": "tis", "cap": 1e9}),
        ({"preset": "m2po", "budget": 1e-12}, {"preset": "dapo", "clip_low": 1e-12, "clip_high": 1e-12}),
    ],
)
def test_at_its_limits_a_correction_becomes_another(wide: dict[str, Any], like: dict[str, Any]) -> None:
    """Wide bounds leave importance sampling; a budget of nothing trains no token that would move further away."""
    samples = drawn(4)
    gradients = [fast(samples, settings_of(values))[1].tolist() for values in (wide, like)]
    assert gradients[0] == pytest.approx(gradients[1], rel=1e-9)


@pytest.mark.parametrize("name", SETTINGS)
def test_an_absurd_token_does_not_overflow_the_update(name: str) -> None:
    absurd = [Drawn([-0.1, -500.0], [-500.0, -0.1], [3, 3], advantage) for advantage in (-1.0, 1.0)]
    found, gradient = fast(absurd, settings_of(SETTINGS[name]))
    assert torch.isfinite(found.losses).all() and torch.isfinite(gradient).all()


def test_the_second_moments_that_are_kept_are_within_the_budget_and_no_more_could_be() -> None:
    draw = torch.Generator().manual_seed(0)
    log_ratios = torch.randn(1_000, generator=draw, dtype=torch.float64) / 2
    advantages = torch.randn(1_000, generator=draw, dtype=torch.float64)
    limit = second_moment_limit(log_ratios, advantages, 0.04)
    moments = log_ratios[log_ratios * advantages > 0].square()
    kept = moments[moments < limit]
    assert 0 < len(kept) < len(moments)
    assert kept.mean() <= 0.04 < moments[moments <= limit].mean()
    assert second_moment_limit(log_ratios, advantages, 1.0) == math.inf
    assert second_moment_limit(torch.full((3,), 0.5), torch.ones(3), 0.04) == 0.25, "ties go together"
    assert second_moment_limit(torch.zeros(0), torch.zeros(0), 0.04) == math.inf


def squared(tokens: LossInputs) -> torch.Tensor:
    return (tokens.logprobs - tokens.behaviour).square()


NOT_A_FUNCTION = 3


def test_a_loss_of_ones_own_replaces_the_correction() -> None:
    samples = drawn(5)
    found, _ = fast(samples, Learner(loss="tests.learner.test_corrections:squared"))
    assert torch.equal(found.losses, squared(inputs_of(samples)))


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("nowhere_at_all:f", "No module named 'nowhere_at_all'"),
        ("tests.learner.test_corrections:nothing", "has no nothing"),
        ("tests.learner.test_corrections:NOT_A_FUNCTION", "is of type int"),
    ],
)
def test_a_loss_that_cannot_be_loaded_is_named(name: str, what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        custom_loss(name)


def test_the_loss_that_the_documentation_shows_is_one_function_that_runs() -> None:
    text = (ROOT / "docs" / "learning.md").read_text(encoding="utf-8")
    begin = text.index("    import torch\n")
    shown: dict[str, Any] = {}
    exec(textwrap.dedent(text[begin : text.index("    [learner]\n", begin)]), shown)
    fresh = inputs_of([replace(sample, logprobs=sample.behaviour) for sample in drawn(6)])
    shown["soft_gate"](fresh).sum().backward()
    assert fresh.logprobs.grad is not None
    torch.testing.assert_close(fresh.logprobs.grad, -fresh.advantages)
