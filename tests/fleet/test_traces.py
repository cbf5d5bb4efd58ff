"""Whatever happens to a simulated fleet, the controller comes back to a busy learner at nearly the least price."""

import pytest

from tests.fleet.traces import KINDS, judged, with_budget
from tests.tiers import few

TRACES = 1000


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_the_learner_is_busy_again_near_the_optimum_after(kind: str) -> None:
    for seed in few(range(TRACES // len(KINDS)), 1, kind):
        assert judged(kind, seed).faults == [], seed


@pytest.mark.proof
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", KINDS)
def test_a_thousand_traces_end_so(kind: str) -> None:
    """CI draws a few of them."""
    seeds = few(range(TRACES // len(KINDS)), 4, f"{kind}, of a thousand")
    assert {seed: found for seed in seeds if (found := judged(kind, seed).faults)} == {}


def test_a_budget_ends_the_fleet_before_it_is_spent() -> None:
    (seed,) = few(range(100), 1, "budget")
    fleet = with_budget(seed, 3.0)
    fleet.run(3600.0)
    assert fleet.started
    assert not fleet.machines
    assert fleet.spent_usd <= 3.0
    assert fleet.last and "budget" in fleet.last.why


def test_a_paused_fleet_is_left_as_it_is() -> None:
    fleet = with_budget(1, 1e9)
    fleet.run(900.0)
    fleet.paused, before = True, dict(fleet.machines)
    fleet.demand *= 2
    fleet.run(600.0)
    assert fleet.machines == before
    fleet.paused = False
    fleet.run(600.0)
    assert len(fleet.machines) > len(before)
