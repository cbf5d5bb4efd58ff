"""Disturbances of a simulated fleet, and the facts that must be true some time later."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from tests.fleet.simulated import SimulatedFleet, drawn

SETTLED_S, LATER_S = 1800.0, 4500.0
"""The time in which a fleet settles before something happens, and the time after which the controller is judged."""
LAST_STEPS = 60
DISMISSAL_STEPS = 10
"""Decisions within which a fleet whose prices jumped above the cap is below it again."""


@dataclass(frozen=True)
class Verdict:
    """`busy`, `cost`: of the last ten minutes; the cost as a multiple of the optimum's. `reversals`: of any pool."""

    busy: float
    cost: float
    reversals: int
    within_cap: bool

    @property
    def faults(self) -> list[str]:
        found = {
            f"busy {self.busy:.3f}": self.busy < 0.95,
            f"cost {self.cost:.3f}": self.cost > 1.05,
            f"{self.reversals} reversals": self.reversals > 1,
            "a cap was exceeded": not self.within_cap,
        }
        return [fault for fault, there in found.items() if there]


def doubled_demand(fleet: SimulatedFleet) -> None:
    fleet.demand *= 2


def cheapest_pool_gone(fleet: SimulatedFleet) -> None:
    """Its machines are taken away. Every other seed has a cloud that only says at a start that it has none."""
    pool = fleet.pools[_largest(fleet)]
    pool.capacity, pool.refuses = 0, bool(fleet.seed % 2)
    fleet.machines = {name: one for name, one in fleet.machines.items() if one.pool != pool.name}


def price_spike(fleet: SimulatedFleet) -> None:
    fleet.pools[_largest(fleet)].usd_per_hour *= 4


def lying_worker(fleet: SimulatedFleet) -> None:
    """A worker makes nothing and claims to be ten times as fast as the others; of every other seed, just as fast."""
    name = next(name for name, one in fleet.machines.items() if one.pool == _largest(fleet))
    fleet.machines[name].works = 0.0
    fleet.machines[name].lie = 10.0 if fleet.seed % 2 else 1.001


KINDS: Mapping[str, Callable[[SimulatedFleet], None]] = {
    "doubled demand": doubled_demand,
    "the cheapest pool gone": cheapest_pool_gone,
    "a price spike": price_spike,
    "a lying worker": lying_worker,
}


def judged(kind: str, seed: int) -> Verdict:
    """Plays one trace."""
    fleet = drawn(seed)
    fleet.run(SETTLED_S)
    before = _within(fleet, fleet.costs)
    fleet.moves.clear()
    fleet.costs.clear()
    KINDS[kind](fleet)
    fleet.run(LATER_S)
    grace = DISMISSAL_STEPS if kind == "a price spike" else 0
    return Verdict(
        busy=sum(fleet.busy[-LAST_STEPS:]) / LAST_STEPS,
        cost=sum(fleet.costs[-LAST_STEPS:]) / LAST_STEPS / fleet.optimum_usd,
        reversals=fleet.reversals(),
        within_cap=before and _within(fleet, fleet.costs[grace:]),
    )


def with_budget(seed: int, usd: float) -> SimulatedFleet:
    """Returns a fleet that may spend so much in all."""
    fleet = drawn(seed)
    fleet.limits = replace(fleet.limits, usd=usd)
    return fleet


def _within(fleet: SimulatedFleet, costs: list[float]) -> bool:
    return max(costs) <= fleet.limits.usd_per_hour + 1e-9


def _largest(fleet: SimulatedFleet) -> str:
    return max(fleet.counts, key=lambda pool: (fleet.counts[pool], pool))
