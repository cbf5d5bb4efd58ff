"""Two threads beside the learner: the controller's turns, and a look at the machines several times in a second."""

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise

from benchmarks.controller.market import Market
from benchmarks.controller.offers import EVERY_S, MACHINES, MOST, POOLS_USD
from echo_queue.fleet.controller import Controller
from echo_queue.fleet.state import Start
from echo_queue.fleet.turn import ControllerTurn

LOOK_S = 0.25
ROUNDING = 1e-9


@dataclass(frozen=True)
class Seen:
    """The machines that there were at a time (monotonic seconds), by pool, and their price."""

    at_s: float
    machines: Mapping[str, int]
    usd_per_hour: float

    @property
    def within_caps(self) -> bool:
        counts = self.machines
        fits = all(count <= MOST[pool] for pool, count in counts.items()) and sum(counts.values()) <= MACHINES
        return fits and self.usd_per_hour <= POOLS_USD + ROUNDING


@dataclass
class Watch:
    """`seen`: every look at the machines. `turns`: the controller's, with the times at which they ended."""

    seen: list[Seen] = field(default_factory=list)
    turns: list[tuple[float, ControllerTurn]] = field(default_factory=list)

    def usd_per_hour(self, from_s: float, until_s: float) -> float:
        """Returns the mean price of the machines in this time."""
        prices = [one.usd_per_hour for one in self.seen if from_s <= one.at_s <= until_s]
        return sum(prices) / len(prices)

    def reversals(self, from_s: float) -> int:
        """Returns the most times that a pool went from growing to shrinking, or back, by orders after this time."""
        signs: dict[str, list[int]] = defaultdict(list)
        known: set[str] = set()
        for at_s, turn in self.turns:
            pools = {one.name: one.pool for one in turn.state.machines}
            fresh = {name for name in turn.decision.memory.dismissals if name in pools and name not in known}
            known |= fresh
            if at_s >= from_s:
                for pool in {order.pool for order in turn.decision.orders if isinstance(order, Start)}:
                    signs[pool].append(1)
                for pool in {pools[name] for name in fresh}:
                    signs[pool].append(-1)
        return max((sum(a != b for a, b in pairwise(each)) for each in signs.values()), default=0)


@contextmanager
def watched(controller: Controller, market: Market) -> Iterator[Watch]:
    """Yields what is seen, while both threads run. Raises afterwards what ended one of them."""
    watch, stop = Watch(), threading.Event()

    def look() -> None:
        while not stop.wait(LOOK_S):
            machines, usd = Counter(market.rented()), market.usd
            price = sum(count * usd[pool] for pool, count in machines.items())
            watch.seen.append(Seen(time.monotonic(), machines, price))

    def decide() -> None:
        while not stop.wait(EVERY_S):
            if turn := controller.turn():
                watch.turns.append((time.monotonic(), turn))

    with ThreadPoolExecutor(2) as threads:
        under_way = [threads.submit(loop) for loop in (look, decide)]
        try:
            yield watch
        finally:
            stop.set()
    for loop in under_way:
        loop.result()
