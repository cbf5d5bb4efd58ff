"""How fast the learner is, whether it waits, and why no machines may help, by the updates that it has recorded."""

from collections.abc import Mapping
from types import MappingProxyType

import pytest

from echo_queue.fleet.demand import Demand, Pace, demand, pace_of
from echo_queue.fleet.drivers.protocol import Quote
from echo_queue.queue import RunRules
from echo_queue.reporting.metrics import UpdateMetrics
from tests.fleet.fleet_harness import fleet_of

T_TRAIN_S = 240.0


def update(ended_s: float, wait_s: float = 0.0, train_s: float = T_TRAIN_S) -> UpdateMetrics:
    return UpdateMetrics(
        time_s=ended_s, lineage=1, version=1, reward_mean=0.0, reward_std=0.0, groups=2, samples=2, tokens=200,
        lags={}, zero_variance_groups=0, loss=0.0, grad_norm=0.0, clip_fraction=0.0, kl_behaviour=0.0, entropy=0.0,
        lr=0.0, wait_s=wait_s, train_s=train_s, save_s=0.0, window=1.0, depths={}, sent_back=0,
    )  # fmt: skip


def test_a_wait_that_was_mended_an_hour_ago_is_no_wait_now() -> None:
    """Otherwise a fleet that has just grown would be taken not to suffice, and grow again every `measure_s`."""
    updates = [update(0.0, wait_s=600.0), *(update(T_TRAIN_S * number) for number in range(1, 16))]
    assert pace_of(updates, T_TRAIN_S, updates[-1].time_s + 1).waits == 0


def test_waits_of_the_last_minute_are_held_against_its_updates() -> None:
    updates = [update(5.0 * number, wait_s=1.0, train_s=4.0) for number in range(1, 17)]
    pace = pace_of(updates, T_TRAIN_S, 80.0)
    assert pace.t_train_s == 4.0 and pace.waits == pytest.approx(1 / 5)


def test_a_learner_that_waits_for_longer_than_an_update_takes_waits_though_it_says_nothing() -> None:
    updates = [update(T_TRAIN_S * number) for number in range(1, 5)]
    assert pace_of(updates, T_TRAIN_S, updates[-1].time_s + 2 * T_TRAIN_S).waits == pytest.approx(0.5)
    assert pace_of([], T_TRAIN_S, 0.0) == (T_TRAIN_S, 1.0)


PACE = Pace(1.0, 0.0)


def wanted(
    quotes: Mapping[str, Quote] = MappingProxyType({}), pace: Pace = PACE, at_once: int = 1, **weights: object
) -> Demand:
    fleet = fleet_of({"spot": 1.0})
    pools = {name: pool.model_copy(update={"samples_at_once": at_once}) for name, pool in fleet.pools.items()}
    fleet = fleet.model_copy(update={"weights": fleet.weights.model_copy(update=weights), "pools": pools})
    return demand(fleet, RunRules(s=1, batch=2, pace=False), pace, quotes, {})


def test_a_learner_that_no_set_keeps_busy_is_told_what_stands_in_the_way() -> None:
    assert wanted().impossible == ""
    assert "no pool has a machine to give (spot)" in wanted({"spot": Quote(available=0)}).impossible
    few = wanted({"spot": Quote(available=1)}, Pace(0.01, 0.0))
    assert "all 1 machines that may be had make 0.5%" in few.impossible
    assert "new weights take" in wanted(parameters=10**12).impossible
    assert "too long for S = 1" in wanted(at_once=2000).impossible
