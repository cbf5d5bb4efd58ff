"""The bounds are consistent with one another, and with what the papers print."""

import math
from itertools import pairwise

import pytest

from echo_queue.capacity.bounds.lengths import TAIL, Lengths
from echo_queue.capacity.bounds.utilisation import (
    Path,
    serial_supply_needed,
    serial_utilisation,
    slowest,
    supply_needed,
    utilisation,
)
from echo_queue.capacity.estimate.lag import lag

PATH = Path(3.0, 1.0, (1.0, 2.0, 2.5, 6.5))
GRID = [(s, kappa, wanted) for s in (0, 1, 2, 4, 8) for kappa in {1, max(1, s - 1)} for wanted in (0.05, 0.2, 0.5, 0.9)]


@pytest.mark.parametrize(("s", "kappa", "wanted"), GRID)
def test_the_supply_needed_is_what_gives_the_utilisation(s: int, kappa: int, wanted: float) -> None:
    needed = supply_needed(wanted, s, kappa, 2.0, PATH)
    if needed == math.inf:
        assert utilisation(1e9, s, kappa, 2.0, PATH) <= wanted
    else:
        assert utilisation(needed, s, kappa, 2.0, PATH) == pytest.approx(wanted)


@pytest.mark.parametrize(("s", "kappa", "wanted"), [(0, 1, 0.2), (2, 1, 0.5), (4, 3, 0.9), (8, 1, 0.97)])
def test_the_supply_needed_is_convex_in_what_delays_all(s: int, kappa: int, wanted: float) -> None:
    """The search draws lines below this curve."""
    needed = [supply_needed(wanted, s, kappa, 2.0, PATH.later(0.05 * step)) for step in range(200)]
    known = [one for one in needed if one < math.inf]
    steps = [after - before for before, after in pairwise(known)]
    assert len(steps) > 10
    assert all(later >= earlier - 1e-9 for earlier, later in pairwise(steps))


def test_supply_that_just_suffices_costs_six_points_and_twice_of_it_none() -> None:
    """A learner and workers that are equally fast wait for one another now and then."""
    at_once = Path(0.0)
    assert utilisation(1.0, 8, 1, 2.0, at_once) == pytest.approx(2 ** (-1 / 12))
    assert utilisation(2.0, 8, 1, 2.0, at_once) == pytest.approx(1, abs=1e-4)
    assert utilisation(0.1, 8, 1, 2.0, at_once) == pytest.approx(0.1)
    assert utilisation(0.0, 8, 1, 2.0, at_once) == 0


def test_a_group_that_always_takes_too_long_makes_s_updates_last_as_long() -> None:
    """Its weights are κ/2 updates old when it begins; within S updates the learner waits for what is missing."""
    assert utilisation(1e9, 4, 2, 1.0, Path(3.0)) == pytest.approx(1)
    assert utilisation(1e9, 4, 2, 1.0, Path(5.0)) == pytest.approx(1 / (1 + (5 - 3) / 4))
    assert utilisation(1e9, 4, 2, 1.0, Path(3.0, ways_s=(1.0, 5.0))) == pytest.approx(1 / (1 + (5 - 3) / 2 / 4))


def test_of_several_ways_each_time_is_the_longest() -> None:
    assert slowest([Path(2.0, 3.0, (1.0, 3.0)), Path(2.5, 1.0, (2.0, 2.5))]) == Path(2.5, 3.0, (2.0, 3.0))


def test_at_s_0_update_publication_and_batch_follow_one_another() -> None:
    """A batch takes as long as its slowest group, or as its work divided among all and half a group more."""
    path = Path(away_s=0.5 + 3.0, lead_s=0.5 + 0.4)
    assert utilisation(1e9, 0, 1, 10.0, path) == pytest.approx(10 / (10 + 0.5 + 3.0))
    assert utilisation(0.5, 0, 1, 10.0, path) == pytest.approx(10 / (10 + 0.5 + 20 + 0.4))


@pytest.mark.parametrize(
    ("t_train_s", "t_bcast_s", "needed"),
    [
        (1_649, 131, (1.09, 1.04, 1.03, 1.02, 1.01)),
        (1_649, 1_312, (4.89, 1.66, 1.36, 1.19, 1.09)),
        (60, 131, (math.inf, math.inf, 3.67, 1.78, 1.28)),
    ],
)
def test_the_serial_rule_asks_what_it_asks_in_echo_2(
    t_train_s: float, t_bcast_s: float, needed: tuple[float, ...]
) -> None:
    """κ = S − 1 for S = 2, 3, 4, 6, 11; 8 billion parameters over 1 Gbit/s and 100 Mbit/s."""
    for kappa, supply in zip((1, 2, 3, 5, 10), needed, strict=True):
        found = serial_supply_needed(kappa, t_train_s=t_train_s, t_bcast_s=t_bcast_s)
        assert found == pytest.approx(supply, abs=0.006)
        if found < math.inf:
            assert serial_utilisation(found, kappa, t_train_s=t_train_s, t_bcast_s=t_bcast_s) == pytest.approx(1)


def test_more_updates_between_publications_make_the_worst_lag_worse() -> None:
    lags = [lag(8, kappa, t_train_s=10, t_bcast_s=5, t_gen_s=12).worst for kappa in (1, 2, 4)]
    assert lags == [4, 5, 7]


def test_the_longest_of_a_group_is_longer_than_a_sample_and_never_longer_than_the_limit() -> None:
    lengths = Lengths(100, 0.6, 300)
    assert lengths.mean_of_longest(1) == pytest.approx(100, rel=0.02)
    assert 100 < lengths.mean_of_longest(8) < lengths.mean_of_longest(64) < 300
    assert lengths.tail_of_longest(64) == lengths.quantile(0.9999) == 300
    uncut = Lengths(100, 0.6, 1e9)
    likely = lengths.likely_longest(8)
    assert sum(likely) / len(likely) == pytest.approx(lengths.mean_of_longest(8), rel=0.01)
    assert uncut.share_longer(uncut.tail_of_longest(4), 4) == pytest.approx(1 - TAIL)
    assert (lengths.share_longer(300, 8), lengths.share_longer(0, 8)) == (0, 1)


def test_the_tail_of_log_normal_times_is_over_three_times_their_mean_at_a_spread_of_0_6() -> None:
    assert Lengths(100, 0.6, 1e9).tail_of_longest(1) == pytest.approx(337, abs=1)
