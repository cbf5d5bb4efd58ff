"""The queue in memory decides what the queue's Lua functions decide: a simulation has the same figures with both.

A rule that is not the same in both shows as another figure, because each decision leads to all later ones.
"""

import pytest

from echo_queue.capacity.simulation import simulate
from tests.capacity.simulation.real_queue import simulate_really
from tests.capacity.simulation.settings import setting

LOST = {"losses_per_machine_hour": 60.0, "boot_s": 15.0, "progress_s": 2.0}
CASES = {
    "on-policy, with losses": setting(0, generation=1.0, updates=12, warm_up=3, pool=LOST),
    "late groups are waited for": setting(1, generation=1.5, updates=25, warm_up=5, pool=LOST | {"progress_s": 0.0}),
    "weights every other update": setting(3, 2, generation=1.0, updates=25, warm_up=5, pool=LOST),
    "a full window": setting(2, generation=0.5, updates=25, warm_up=5, staleness={"pace": False, "late": "wait"}),
    "more late groups than one step sends back": setting(1, generation=2.0, batch=48, updates=6, warm_up=2),
    "machines of several groups": setting(4, supply=4.0, updates=25, warm_up=5, pool={"concurrent_groups": 4}),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_both_queues_lead_to_the_same_figures(case: str) -> None:
    asked = CASES[case]
    assert simulate_really(asked, 3) == simulate(asked, 3)
