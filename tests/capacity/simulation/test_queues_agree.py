"""The queue in memory decides what the queue's Lua functions decide: a simulation has the same figures with both.

A rule that is not the same in both shows as another figure, because each decision leads to all later ones.
"""

from typing import Any

import pytest

from echo_queue.capacity.simulation import simulate
from tests.capacity.simulation.real_queue import simulate_really
from tests.capacity.simulation.scenarios import scenario

LOST = {"losses_per_hour": 60.0, "boot_s": 15.0}
CASES: dict[str, dict[str, Any]] = {
    "on-policy, with losses": {"s": 0, "generation": 1.0, "updates": 12, "warm_up": 3, "pool": LOST},
    "late groups are waited for": {"s": 1, "generation": 1.5, "pool": LOST | {"progress_s": 0.0}},
    "weights every other update": {"s": 3, "kappa": 2, "generation": 1.0, "pool": LOST},
    "a full window": {"s": 2, "rules": {"pace": False, "late": "wait"}},
    "more late groups than one step sends back": {"s": 1, "generation": 2.0, "batch": 48, "updates": 6, "warm_up": 2},
    "machines of several groups": {"s": 4, "supply": 4.0, "groups": 4},
    "machines that come, go and differ": {
        "s": 4,
        "churn": {"stragglers": 0.3, "bursts_per_hour": 60.0, "notice": True},
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_both_queues_lead_to_the_same_figures(case: str) -> None:
    asked = scenario(**{"updates": 25, "warm_up": 5, "seed": 3} | CASES[case])
    assert simulate_really(asked) == simulate(asked)
