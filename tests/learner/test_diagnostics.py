import math
from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from echo_queue.config import Learner
from echo_queue.records import Group
from echo_queue.reporting.metrics import UpdateMetrics
from learner.diagnostics.guard import MEMORY, MOST_KL, NO_STEP, Guard, step_scale, too_far, widest_window
from learner.diagnostics.ratios import RatioFigures, TokenRatios, effective_share, ratio_figures
from learner.model.loading import prepare as for_scorer
from learner.model.policy import Policy
from learner.update import UpdateResult, learn
from tests.learner.synthetic import group, tiny_model
from tests.source_code import ROOT


def test_the_effective_share_is_one_for_equal_weights_and_that_of_one_if_one_is_all() -> None:
    assert effective_share(np.full(7, -3.0)) == pytest.approx(1.0)
    assert effective_share(np.array([0.0, -900.0, -900.0, -900.0])) == pytest.approx(1 / 4)
    weights = [0.2, 1.0, 1.7, 0.4]
    expected = math.fsum(weights) ** 2 / (4 * math.fsum(weight**2 for weight in weights))
    assert effective_share(np.log(weights)) == pytest.approx(expected)
    assert effective_share(np.log(weights) + 800) == pytest.approx(expected), "a common factor changes nothing"


def test_figures_of_ratios_by_hand() -> None:
    log_ratios = np.log([1.0, 2.0, 0.5, 1.0, 4.0])
    lags = np.array([0, 0, 3, 3, 3])
    halves = [(slice(0, 2), [2, 0]), (slice(2, 5), [3])]
    found = ratio_figures([TokenRatios(log_ratios[at], lags[at], np.array(lengths)) for at, lengths in halves])
    assert found.second_moment == pytest.approx((1 + 1 + 4) * math.log(2) ** 2 / 5)
    assert found.ess_tokens == pytest.approx(8.5**2 / (5 * 22.25))
    assert found.ess_samples == pytest.approx(1.0), "both samples have the product 2, and the empty one none"
    assert [lag for lag, _ in found.by_lag] == [0, 3]
    assert found.by_lag[1][1][1] == pytest.approx(1.0)


NEAR, FAR = -4.0, -9.0
"""Behaviour log-probabilities of all tokens; the model's are around -4."""


def even_model() -> PreTrainedModel:
    """Returns a model whose log-probabilities are near one another, so that its ratios to `NEAR` are moderate."""
    model = for_scorer(tiny_model())
    with torch.no_grad():
        model.model.norm.weight.mul_(0.7)
    return model


def drawn_with(logprob: float) -> list[Group]:
    """Returns two groups whose tokens all had this log-probability when they were drawn."""
    return [
        replace(item, samples=tuple(replace(one, logprobs=np.full_like(one.logprobs, logprob)) for one in item.samples))
        for item in (group(0), group(1))
    ]


def learned(logprob: float = NEAR, **settings: object) -> UpdateResult:
    chosen = Learner.model_validate({"lr": 1e-2, **settings})
    return learn(Policy(even_model(), chosen), drawn_with(logprob), 3, chosen, 1.0)


def test_a_guard_that_acts_takes_smaller_steps_on_stale_data() -> None:
    warned, acted, off = (learned(NEAR, guard=word) for word in ("warn", "act", "off"))
    assert warned.ratios.ess_tokens < 0.9 and NO_STEP / 2 < warned.ratios.second_moment < NO_STEP
    assert warned.lr == off.lr == 1e-2
    assert 0 < acted.lr == pytest.approx(1e-2 * step_scale(warned.ratios))


@pytest.mark.parametrize(
    ("moved", "scale"),
    [(0.0, 0.5), (NO_STEP / 2, 0.5), (NO_STEP * 3 / 4, 0.25), (NO_STEP, 0.0), (9 * NO_STEP, 0.0)],
)
def test_steps_shrink_with_the_effective_sample_size_and_end_where_the_policy_has_left_the_data(
    moved: float, scale: float
) -> None:
    assert step_scale(RatioFigures(ess_tokens=0.25, second_moment=moved)) == pytest.approx(scale)


def test_a_guard_that_acts_leaves_the_weights_as_they_are_where_the_data_is_too_far_off() -> None:
    chosen = Learner.model_validate({"lr": 1e-2, "guard": "act"})
    policy = Policy(for_scorer(tiny_model()), chosen)
    before = {name: weight.clone() for name, weight in policy.snapshot().items()}
    result = learn(policy, drawn_with(FAR), 3, chosen, 1.0)
    assert result.ratios.second_moment > NO_STEP and result.lr == 0.0
    assert all(torch.equal(weight, before[name]) for name, weight in policy.snapshot().items())


def test_lags_count_from_the_version_that_is_trained() -> None:
    assert [lag for lag, _ in learned().ratios.by_lag] == [2]


def test_fresh_data_raises_no_alarm_and_takes_whole_steps() -> None:
    watchful = Guard("act", 5.0)
    assert not any(watchful.look(0.0) for _ in range(3 * MEMORY))
    assert watchful.widest == 5.0
    assert step_scale(RatioFigures()) == 1.0


@pytest.mark.parametrize(
    ("distances", "alarm"),
    [
        ([], False),
        ([2 * MOST_KL] * (MEMORY - 1), False),
        ([2 * MOST_KL] * MEMORY, True),
        ([MOST_KL] * MEMORY, False),
        ([1.01 * MOST_KL] * MEMORY, True),
        ([0.0] * (MEMORY - 1) + [9 * MOST_KL], False),
        ([0.0] * (MEMORY - 1) + [11 * MOST_KL], True),
        ([-MOST_KL] * MEMORY, False),
    ],
)
def test_an_alarm_needs_ten_updates_that_are_too_far_from_their_data_on_average(
    distances: list[float], alarm: bool
) -> None:
    assert too_far(distances) is alarm
    watchful = Guard("warn", 5.0)
    told = [watchful.look(one) for one in distances]
    assert bool(told and told[-1]) is alarm and not any(told[:-1])


def test_an_alarm_says_what_is_wrong_and_what_helps() -> None:
    [*_, told] = map(Guard("warn", 5.0).look, [3.0] * MEMORY)
    assert "moved 3.0 nats per token away from the last 10 updates' data" in told
    assert "lower learner.lr or staleness.s" in told and "dppo" in told


def test_an_alarm_ends_with_its_cause_and_a_learner_that_starts_again_waits_for_ten_updates() -> None:
    watchful = Guard("warn", 5.0)
    assert [watchful.look(1.2 * MOST_KL) for _ in range(MEMORY)][-1]
    assert watchful.look(0.0) and not watchful.look(0.0), "the mean of ten is below the limit with the second"
    assert watchful.widest == 5.0, "a guard that warns leaves the window alone"
    again = Guard("warn", 5.0)
    assert not any(again.look(9.0) for _ in range(MEMORY - 1)) and again.look(9.0)
    assert not any(Guard("off", 5.0).look(9.0) for _ in range(2 * MEMORY))


def test_a_guard_that_acts_narrows_the_window_with_each_alarm() -> None:
    watchful = Guard("act", 9.0)
    for _ in range(MEMORY + 1):
        watchful.look(2 * MOST_KL)
    assert watchful.widest == 9.0 / 4


def test_each_alarm_halves_the_window_and_calm_gives_it_back() -> None:
    widest = 9.0
    for _ in range(5):
        widest = widest_window(widest, True, 9.0)
    assert widest == 1.0
    for _ in range(100):
        widest = widest_window(widest, False, 9.0)
    assert widest == 9.0


def test_each_field_of_a_record_is_explained() -> None:
    text = (ROOT / "docs" / "learning.md").read_text(encoding="utf-8")
    assert [one.name for one in fields(UpdateMetrics) if f"`{one.name}`" not in text] == []
