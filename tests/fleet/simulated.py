"""A fleet on a virtual clock, which obeys a controller's orders as a cloud would: late, and not always.

Pools have prices and capacity that change, machines take their time to boot, to leave and to end, workers may lie about
their rate, and what the queue tells is an average over the last minute. The learner takes what it is given, up to its
own demand.
"""

import random
from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise

from echo_queue.capacity.bounds.offers import PlannedOffer
from echo_queue.capacity.bounds.utilisation import Path, supply_needed
from echo_queue.capacity.plan.search import Goal, cheapest
from echo_queue.fleet.decision import decide
from echo_queue.fleet.state import (
    Decision,
    End,
    LearnerState,
    Leave,
    Limits,
    Machine,
    Memory,
    Offer,
    Rest,
    Start,
    State,
    Worker,
)

STEP_S = 10.0
AVERAGED_STEPS = 6
HEARD_S = 60.0
"""A learner that has died counts as heard for so long."""
WANTED = 0.97
HEADROOM = supply_needed(WANTED, 64, 1, 1.0, Path(0.001))
"""Supply that the plan asks for, of what the learner consumes."""


@dataclass
class Pool:
    """A pool as it really is. `capacity`: the most machines that it has; `refuses`: it says so only at a start."""

    name: str
    usd_per_hour: float
    supply: float
    capacity: int
    boot_s: float
    planned: float = 0.0
    refuses: bool = False

    @property
    def offer(self) -> Offer:
        limit = 500 if self.refuses else self.capacity
        return Offer(self.name, self.usd_per_hour, self.planned or self.supply, limit, self.boot_s)


@dataclass
class Rented:
    """A machine. `lie`: by what its worker multiplies its rate; `works`: the share of its pool's supply it gives."""

    pool: str
    serves_s: float
    goes_s: float = float("inf")
    leaves_s: float = float("inf")
    lie: float = 1.0
    works: float = 1.0
    silent_from_s: float = float("inf")


@dataclass
class SimulatedFleet:
    """Call `run`; the figures are of everything that has happened so far."""

    pools: dict[str, Pool]
    demand: float
    limits: Limits
    seed: int = 0
    now_s: float = 0.0
    paused: bool = False
    silent_from_s: float = float("inf")
    """The learner lives until then, and makes progress."""
    machines: dict[str, Rented] = field(default_factory=dict)
    memory: Memory = field(default_factory=Memory)
    refused: set[str] = field(default_factory=set)
    started: list[str] = field(default_factory=list)
    moves: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    """The turns by pool: +1 for a decision that started machines of it and −1 for one that dismissed some."""
    costs: list[float] = field(default_factory=list)
    busy: list[float] = field(default_factory=list)
    spent_usd: float = 0.0
    last: Decision | None = None

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self._made: deque[float] = deque(maxlen=AVERAGED_STEPS)
        self._rates: dict[str, deque[float]] = defaultdict(lambda: deque(maxlen=AVERAGED_STEPS))

    def run(self, seconds: float) -> None:
        until_s = self.now_s + seconds
        while self.now_s < until_s:
            self._work()
            self.last = decision = decide(
                self._state(), [one.offer for one in self.pools.values()], self.limits, self.now_s
            )
            self.memory, self.refused = decision.memory, set()
            self._obey(decision)
            self.costs.append(self.usd_per_hour)
            self.now_s += STEP_S

    @property
    def usd_per_hour(self) -> float:
        return sum(self.pools[one.pool].usd_per_hour for one in self.machines.values())

    @property
    def counts(self) -> Mapping[str, int]:
        return Counter(one.pool for one in self.machines.values())

    @property
    def optimum_usd(self) -> float:
        """Returns the cost of the cheapest set with the supply that the plan asks for, by the plan's own search."""
        chosen = cheapest([([_planned(one, self.demand) for one in self.pools.values()], self._goal())])
        assert chosen is not None
        return chosen.usd_per_hour

    def reversals(self) -> int:
        """The most times that a pool went from growing to shrinking, or back, in one life of `moves`."""
        turns = [sum(a != b for a, b in pairwise(signs)) for signs in self.moves.values()]
        return max(turns, default=0)

    def _goal(self) -> Goal:
        return Goal(64, 1, 1.0, WANTED, budget_usd_per_hour=self.limits.usd_per_hour)

    def _work(self) -> None:
        for name, one in list(self.machines.items()):
            if self.now_s >= one.goes_s:
                del self.machines[name]
        serving = {name: one for name, one in self.machines.items() if one.serves_s <= self.now_s < one.leaves_s}
        gives = {name: self.pools[one.pool].supply * one.works for name, one in serving.items()}
        supply = sum(gives.values())
        made = min(supply, self.demand)
        self._made.append(made)
        self.busy.append(made / self.demand)
        self.spent_usd += self.usd_per_hour * STEP_S / 3600
        for name, one in serving.items():
            # A worker that lies says what it would if it worked as it should.
            honest = self.pools[one.pool].supply * (made / supply if supply else 0.0)
            rate = honest * one.lie if one.lie != 1.0 else gives[name] * (made / supply if supply else 0.0)
            self._rates[name].append(rate * self.random.uniform(0.9, 1.1))

    def _state(self) -> State:
        made = sum(self._made) / len(self._made)
        alive_s = min(self.now_s, self.silent_from_s)
        learner = LearnerState(self.now_s - alive_s <= HEARD_S, figures=(int(alive_s),))
        return State(
            machines=tuple(Machine(name, one.pool) for name, one in self.machines.items()),
            workers=tuple(self._workers()),
            needed=HEADROOM * self.demand,
            made=made,
            starved=made < 0.97 * self.demand,
            memory=self.memory,
            refused=frozenset(self.refused),
            paused=self.paused,
            learner=learner,
            hold="" if learner.heard else "no learner is heard, so nobody knows what is needed",
        )

    def _workers(self) -> Iterator[Worker]:
        for name, one in self.machines.items():
            if one.serves_s <= self.now_s < one.leaves_s:
                rates = self._rates[name]
                rate = sum(rates) / len(rates) if rates else None
                yield Worker(name, max(0.0, self.now_s - one.silent_from_s), True, rate)

    def _obey(self, decision: Decision) -> None:
        starts = [order for order in decision.orders if isinstance(order, Start)]
        dismissed = set(decision.memory.dismissals) & {name for name in self.machines}
        fresh = [name for name in dismissed if self.machines[name].leaves_s == float("inf")]
        for pool in {order.pool for order in starts}:
            self.moves[pool].append(1)
        for pool in {self.machines[name].pool for name in fresh if name not in self.memory.quiet}:
            self.moves[pool].append(-1)
        for order in decision.orders:
            match order:
                case Start(name, pool):
                    self._start(name, self.pools[pool])
                case Rest(name) | Leave(name) if name in self.machines:
                    one = self.machines[name]
                    most = 90 if isinstance(order, Rest) else 20
                    one.leaves_s = min(one.leaves_s, self.now_s + self.random.uniform(1, most))
                case End(name) if name in self.machines:
                    one = self.machines[name]
                    one.leaves_s = min(one.leaves_s, self.now_s)
                    one.goes_s = min(one.goes_s, self.now_s + self.random.uniform(0, 40))

    def _start(self, name: str, pool: Pool) -> None:
        assert name not in self.started, "nothing is started twice"
        if self.counts.get(pool.name, 0) >= pool.capacity:
            self.refused.add(name)
            return
        self.started.append(name)
        self.machines[name] = Rented(pool.name, self.now_s + pool.boot_s * self.random.uniform(0.7, 1.3))


def _planned(pool: Pool, demand: float) -> PlannedOffer:
    return PlannedOffer(pool.name, pool.usd_per_hour, 0.0, pool.supply / demand, 1, pool.capacity, 0.0, Path(0.001))


def drawn(seed: int) -> SimulatedFleet:
    """Returns a fleet of three to six pools that a seed draws, of which any two could do without the cheapest."""
    draw = random.Random(seed)
    pools = {}
    for number in range(draw.randint(3, 6)):
        supply = draw.uniform(0.5, 2.0)
        price = supply * draw.uniform(0.3, 1.2)
        name = f"pool-{chr(97 + number)}"
        pools[name] = Pool(name, round(price, 2), supply, draw.randint(60, 150), draw.uniform(60, 400))
    demand = draw.uniform(20, 40)
    fleet = SimulatedFleet(pools, demand, Limits(machines=400), seed)
    cap = 1.3 * fleet.optimum_usd * 2.5
    fleet.limits = replace(fleet.limits, usd_per_hour=cap)
    return fleet
