"""A turn of a controller, and how it is told: as one line for people, or as JSON with all that it rests on."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass

import orjson

from echo_queue.fleet.demand import Demand
from echo_queue.fleet.state import Decision, End, Leave, Order, Rest, Start, State

WORDS: Mapping[type[Order], str] = {Start: "start", Rest: "let finish", Leave: "send away", End: "end"}


@dataclass(frozen=True)
class ControllerTurn:
    """A controller's turn: what it saw, what it decided, and what that rests on."""

    decision: Decision
    demand: Demand
    state: State

    def line(self, *, acts: bool) -> str:
        """Returns the decision as one line: its orders, why, and the figures that a person checks it by."""
        decision, state, wanted = self.decision, self.state, self.demand
        price = {offer.pool: offer.usd_per_hour for offer in wanted.offers}
        usd = sum(price.get(machine.pool, 0.0) for machine in state.machines)
        here = Counter(machine.pool for machine in state.machines)
        made = "not known yet" if state.made is None else f"{state.made:.3g}"
        figures = (
            f"machines: {_counts(here)} for {usd:.2f} USD an hour",
            f"wanted: {_counts(decision.wanted)}",
            f"groups per second: {wanted.needed:.3g} needed, {made} made",
            f"spent: {decision.memory.spent_usd:.2f} USD",
        )
        orders = ", ".join(self._orders()) or "order nothing"
        return f"{'decided to' if acts else 'would'} {orders}: {decision.why}; {'; '.join(figures)}"

    def document(self, *, acts: bool) -> str:
        """Returns the decision as one line of JSON."""
        decision, state, wanted = self.decision, self.state, self.demand
        said = {
            "acts": acts,
            "why": decision.why,
            "orders": [{"order": type(order).__name__.lower(), **asdict(order)} for order in decision.orders],
            "wanted": decision.wanted,
            "machines": Counter(machine.pool for machine in state.machines),
            "needed": round(wanted.needed, 4),
            "utilisation": wanted.utilisation,
            "made": state.made and round(state.made, 4),
            "starved": state.starved,
            "silent_s": round(decision.memory.silent_s, 1),
            "still_s": round(decision.memory.still_s, 1),
            "offers": {one.pool: [one.usd_per_hour, round(one.supply, 4), one.limit] for one in wanted.offers},
            "prices": wanted.prices,
            "unworthy": sorted(decision.memory.unworthy),
            "trust": round(decision.memory.trust, 3),
            "pace": {pool: round(pace, 3) for pool, pace in decision.memory.pace.items()},
            "spent_usd": round(decision.memory.spent_usd, 2),
        }
        return orjson.dumps(said).decode()

    def _orders(self) -> Iterator[str]:
        pools = {machine.name: machine.pool for machine in self.state.machines}
        pools |= {name: launch.pool for name, launch in self.state.memory.launches.items()}
        for kind, word in WORDS.items():
            orders = [order for order in self.decision.orders if isinstance(order, kind)]
            of = Counter(
                order.pool if isinstance(order, Start) else pools.get(order.name, "a pool") for order in orders
            )
            if of:
                yield f"{word} {_counts(of)}"


def _counts(machines: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {pool}" for pool, count in sorted(machines.items()) if count) or "none"
