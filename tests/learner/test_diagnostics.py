import math
from dataclasses import fields

import numpy as np
import pytest

from echo_queue.config import Learner
from echo_queue.reporting.metrics import UpdateMetrics
from learner.diagnostics.guard import LEAST_ESS, MEMORY, Guard, step_scale, widest_window
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


def learned(**settings: object) -> UpdateResult:
    """Trains groups whose behaviour log-probabilities are far from the model's."""
    chosen = Learner.model_validate({"lr": 1e-2, **settings})
    return learn(Policy(for_scorer(tiny_model()), chosen), [group(0), group(1)], 3, chosen, 1.0)


def test_a_guard_that_acts_takes_smaller_steps_on_stale_data() -> None:
    warned, acted, off = (learned(guard=word) for word in ("warn", "act", "off"))
    assert warned.ratios.ess_tokens < 0.9
    assert warned.lr == off.lr == 1e-2
    assert acted.lr == pytest.approx(1e-2 * math.sqrt(warned.ratios.ess_tokens))


def test_lags_count_from_the_version_that_is_trained() -> None:
    assert [lag for lag, _ in learned().ratios.by_lag] == [2]


def test_fresh_data_raises_no_alarm_and_takes_whole_steps() -> None:
    watchful = Guard("act", 5.0)
    assert not any(watchful.look(RatioFigures()) for _ in range(3 * MEMORY))
    assert watchful.widest == 5.0
    assert step_scale(RatioFigures()) == 1.0


def test_an_alarm_needs_a_mean_of_ten_updates() -> None:
    little, much = RatioFigures(ess_tokens=LEAST_ESS / 2), RatioFigures(ess_tokens=1.0)
    watchful = Guard("warn", 5.0)
    told = [watchful.look(little) for _ in range(MEMORY)]
    assert not any(told[:-1]) and "only 8% of the last 10" in told[-1]
    assert not watchful.look(much), "one good update is enough to lift this mean"
    assert watchful.widest == 5.0, "a guard that warns leaves the window alone"
    assert not any(Guard("off", 5.0).look(little) for _ in range(2 * MEMORY))


def test_a_guard_that_acts_narrows_the_window_with_each_alarm() -> None:
    watchful = Guard("act", 9.0)
    for _ in range(MEMORY + 1):
        watchful.look(RatioFigures(ess_tokens=0.01))
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
