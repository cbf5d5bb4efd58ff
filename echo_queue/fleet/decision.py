"""Decides which machines to start and which to dismiss. `decide` is pure: the same state gives the same orders.

- Too little supply is mended at once, by the cheapest machines; launches count until their deadline.
- A cheaper fleet must have been possible for a while and save a real share before anything is dismissed for it, and no
  machine is dismissed before the others serve enough without it.
- No order leads beyond a cap, with what is leaving counted. A price that rises beyond the cap dismisses at once, and a
  budget that is spent dismisses everything, whatever else is known or not.
- A finished run needs no machine, and neither does a learner that has been silent, or has stood still, for too long.
- Who is silent is replaced and not ended; where most are silent at once, nothing is ordered.
- A machine whose workers are suspended is sent away and replaced, but not for ever in the same pool.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from echo_queue.fleet import suspension
from echo_queue.fleet.accounts import HOUR_S, Inventory, Phase, brought_up, inventory, unreachable
from echo_queue.fleet.choice import Caps, Choosable, affordable
from echo_queue.fleet.credit import credit, judged, unit
from echo_queue.fleet.state import (
    Decision,
    Dismissal,
    End,
    Ending,
    Launch,
    Leave,
    Limits,
    Memory,
    Offer,
    Order,
    Rest,
    Start,
    State,
)
from echo_queue.queue.counts import duration

TOLERANCE = 0.005
"""Share of the supply needed that may be missing, so that the last digit of a measurement rents nothing."""
STILL = 4.0
"""A learner that is heard and makes no progress is waited for so many times as long as one that is silent."""
SLOW = 3.0
"""It is waited for so many updates at least."""
SILENCE = "most machines fell silent at once, so what lies between is taken to be broken"
NOTHING: Mapping[str, int] = {}


def decide(state: State, offers: Sequence[Offer], limits: Limits, now_s: float) -> Decision:
    """Returns the orders, and what to remember of them before they are carried out."""
    by_pool = {offer.pool: offer for offer in offers}
    memory = suspension.sent_away(state, brought_up(state, by_pool, limits, now_s), by_pool, limits, now_s)
    memory = judged(state, memory, by_pool, limits, now_s)
    return _Decider(state, memory, by_pool, limits, now_s).decision()


class _Decider:
    """One decision, with what it has found out so far."""

    def __init__(self, state: State, memory: Memory, offers: Mapping[str, Offer], limits: Limits, now_s: float) -> None:
        self._state = state
        self._memory = memory
        self._offers = offers
        self._limits = limits
        self._now_s = now_s
        self._found: Inventory = inventory(state, memory, offers)
        counted = [name for name in self._useful() if name not in memory.doubted]
        self._counts = Counter(self._found.pools[name] for name in counted)
        self._serving = sum(self._credit(name) for name in self._found.of(Phase.serving))
        self._committed = sum(self._credit(name) for name in counted)
        serving = Counter(self._found.pools[name] for name in self._found.of(Phase.serving))
        self._unused = suspension.unused(memory, serving)

    def decision(self) -> Decision:
        return self._within_caps() or self._not_needed() or self._unknown() or self._planned()

    def _within_caps(self) -> Decision | None:
        """Caps hold whatever is known of the learner, and whoever has paused the fleet."""
        if ended := self._budget_ended():
            return self._ordered([], self._dismissed(self._staying(), Ending.leave), NOTHING, ended)
        if self._excess_usd > 0:
            best = self._choose(NOTHING)
            shed = self._shed(best)
            return self._ordered([], self._dismissed(shed, Ending.leave), best, "the machines cost more than the cap")
        return None

    def _not_needed(self) -> Decision | None:
        if self._state.paused:
            return self._hold("it is paused")
        if self._state.over:
            return self._ordered([], self._dismissed(self._staying(), Ending.leave), NOTHING, "the run is finished")
        if stalled := self._stalled():
            return self._ordered([], self._dismissed(self._staying(), Ending.rest), NOTHING, stalled)
        return None

    def _unknown(self) -> Decision | None:
        """Without knowing what is needed nothing is planned. What is dismissed already goes on to leave."""
        if unreachable(self._state, self._found, self._limits):
            return self._hold(SILENCE)
        if self._state.hold:
            return self._ordered([], {}, self._counts, self._state.hold)
        return None

    def _planned(self) -> Decision:
        best = self._choose(NOTHING)
        if self._committed < self._state.needed * (1 - TOLERANCE):
            self._memory = replace(self._memory, saving_s=None)
            return self._grow(self._more(best))
        return self._calm(best)

    def _stalled(self) -> str:
        """Returns why the learner needs no machine any more, though its run is not finished; empty if it needs some."""
        memory, stall_s = self._memory, self._limits.stall_s
        if memory.silent_s >= stall_s:
            return f"no learner has been heard for {duration(memory.silent_s)}: nothing needs these machines"
        if memory.still_s >= max(STILL * stall_s, SLOW * self._state.learner.t_train_s):
            return f"the learner has made no progress for {duration(memory.still_s)}: nothing needs these machines"
        return ""

    def _grow(self, wanted: Mapping[str, int]) -> Decision:
        """Supply is missing. Where the caps leave no room to start enough, what is not wanted makes some."""
        starts = self._starts(wanted)
        blocked = Counter(wanted) - self._counts - Counter(start.pool for start in starts)
        released = self._dismissed(self._making_room(wanted, blocked), Ending.rest)
        return self._ordered(starts, released, wanted, "the supply does not suffice")

    def _making_room(self, wanted: Mapping[str, int], blocked: Counter[str]) -> Iterator[str]:
        """Yields machines that are not wanted, those worth least first, until what is blocked has room."""
        usd, count = self._cost(blocked), blocked.total()
        left = Counter(self._found.pools[name] for name in self._useful())
        for name in sorted(self._useful(), key=self._worth):
            pool = self._found.pools[name]
            if (usd > 0 or count > 0) and left[pool] > wanted.get(pool, 0):
                left[pool], usd, count = left[pool] - 1, usd - self._price(name), count - 1
                yield name

    def _calm(self, best: Mapping[str, int]) -> Decision:
        """There is enough supply: a cheaper fleet is taken once it has been possible for a while."""
        cost = sum(self._price(name) for name in self._useful())
        if self._cost(best) >= cost * (1 - self._limits.saving) or not self._suffices(best):
            self._memory = replace(self._memory, saving_s=None)
            return self._ordered([], {}, self._counts, "the supply suffices, at the least price or near it")
        since_s = self._now_s if self._memory.saving_s is None else self._memory.saving_s
        self._memory = replace(self._memory, saving_s=since_s)
        if self._now_s - since_s < self._limits.calm_s:
            return self._ordered([], {}, self._counts, "a cheaper fleet would do, but not for long enough yet")
        released = self._dismissed(self._surplus(best), Ending.rest)
        return self._ordered(self._starts(best), released, best, "a cheaper fleet would do")

    # What is wanted ---------------------------------------------------------------------------------------------------

    def _choose(self, least: Mapping[str, int]) -> Mapping[str, int]:
        """Returns the cheapest set with enough supply and at least these machines; `least` where the caps forbid it."""
        pools = tuple(
            Choosable(pool, offer.usd_per_hour, unit(pool, self._memory, self._offers), least.get(pool, 0), most)
            for pool, offer in self._offers.items()
            if (most := self._most(pool)) > 0
        )
        chosen = affordable(pools, self._state.needed, Caps(self._limits.usd_per_hour, self._limits.machines))
        if chosen is None:
            return least
        return {one.pool: count for one, count in zip(pools, chosen, strict=True) if count}

    def _most(self, pool: str) -> int:
        """Returns the most machines of a pool: after a failure, or if it is not used, those that there are."""
        setback = self._memory.setbacks.get(pool)
        here = self._counts[pool]
        waits = pool in self._unused or (setback is not None and self._now_s < setback.until_s)
        return here if waits else max(here, self._offers[pool].limit)

    def _more(self, best: Mapping[str, int]) -> Mapping[str, int]:
        """Returns what to have where supply is missing: more machines, or others if that is worth it."""
        more = self._choose(self._counts)
        if self._suffices(best) and self._cost(best) < self._cost(more) * (1 - self._limits.saving):
            return best
        if self._suffices(more):
            return more
        return best if self._supply(best) * (1 - self._limits.saving) > self._supply(more) else more

    def _suffices(self, machines: Mapping[str, int]) -> bool:
        return self._supply(machines) >= self._state.needed * (1 - TOLERANCE)

    def _supply(self, machines: Mapping[str, int]) -> float:
        return sum(count * unit(pool, self._memory, self._offers) for pool, count in machines.items())

    # Orders -----------------------------------------------------------------------------------------------------------

    def _starts(self, wanted: Mapping[str, int]) -> list[Start]:
        """Returns starts of what is missing, as far as the caps have room for it beside all that is there."""
        usd = min(self._limits.usd_per_hour, self._affordable_usd_per_hour) - self._found.usd_per_hour
        room = self._limits.machines - len(self._found.pools)
        starts: list[Start] = []
        for pool in sorted(wanted, key=lambda pool: self._offers[pool].usd_per_hour / self._offers[pool].supply):
            price = self._offers[pool].usd_per_hour
            missing = wanted[pool] - self._counts[pool]
            while missing > 0 and room > 0 and price <= usd:
                starts.append(Start(f"{pool}-{int(self._now_s * 1000):x}-{len(starts)}", pool))
                missing, room, usd = missing - 1, room - 1, usd - price
        return starts

    def _surplus(self, best: Mapping[str, int]) -> Iterator[str]:
        """Yields machines that are not wanted, those that are worth least first, while the others suffice.

        A silent one is none of them: it may be heard again, and is ended once it counts as lost.
        """
        left, serving = Counter(self._found.pools[name] for name in self._useful()), self._serving
        for name in sorted(self._useful(), key=self._worth):
            pool = self._found.pools[name]
            gives = self._credit(name) if self._found.phases[name] is Phase.serving else 0.0
            enough = gives == 0.0 or serving - gives >= self._state.needed * (1 - TOLERANCE)
            if left[pool] > best.get(pool, 0) and enough:
                left[pool], serving = left[pool] - 1, serving - gives
                yield name

    def _shed(self, best: Mapping[str, int]) -> Iterator[str]:
        """Yields machines until the rest is within the cap: what is not wanted first, then the rest."""
        excess, staying = self._excess_usd, sorted(self._staying(), key=self._worth)
        for wanted in (best, NOTHING):
            left = Counter(self._found.pools[name] for name in staying)
            for name in tuple(staying):
                pool = self._found.pools[name]
                if excess > 0 and left[pool] > wanted.get(pool, 0):
                    left[pool], excess = left[pool] - 1, excess - self._price(name)
                    staying.remove(name)
                    yield name

    def _dismissed(self, names: Iterable[str], stage: Ending) -> dict[str, Dismissal]:
        """Returns dismissals; a machine without a worker that is heard has nothing to finish."""
        phases = self._found.phases
        stages = {name: stage if phases[name] is Phase.serving else Ending.end for name in names}
        return {name: Dismissal(how, self._now_s) for name, how in stages.items()}

    def _ordered(
        self, starts: Sequence[Start], dismissed: Mapping[str, Dismissal], wanted: Mapping[str, int], why: str
    ) -> Decision:
        memory = self._memory
        launches = {name: launch for name, launch in memory.launches.items() if name not in dismissed}
        launches |= {start.name: Launch(start.pool, self._now_s) for start in starts}
        dismissals = {**memory.dismissals, **dismissed}
        orders: list[Order] = [_order(name, one.stage) for name, one in sorted(dismissals.items())]
        return self._decided((*orders, *starts), replace(memory, launches=launches, dismissals=dismissals), wanted, why)

    def _hold(self, why: str) -> Decision:
        return self._decided((), self._memory, self._counts, why)

    def _decided(self, orders: tuple[Order, ...], memory: Memory, wanted: Mapping[str, int], why: str) -> Decision:
        why = "; ".join((why, *suspension.told(memory, self._unused)))
        return Decision(orders, replace(memory, why=why), dict(wanted), why)

    # Money ------------------------------------------------------------------------------------------------------------

    @property
    def _excess_usd(self) -> float:
        """USD per hour above the cap, without the machines that are leaving already."""
        return sum(self._price(name) for name in self._staying()) - self._limits.usd_per_hour

    @property
    def _affordable_usd_per_hour(self) -> float:
        """The price of machines that may be had so that they can still be dismissed before the budget ends."""
        limits = self._limits
        seconds = limits.rest_s + limits.leave_s + 2 * limits.decision_s
        return (limits.usd - self._memory.spent_usd) * HOUR_S / seconds

    def _budget_ended(self) -> str:
        """Returns that the budget has ended, if it has. What is left of it then rents nothing; a larger one does."""
        before, usd = self._memory.ended_usd, self._limits.usd
        if (before is None or usd > before) and self._found.usd_per_hour < self._affordable_usd_per_hour:
            return ""
        self._memory = replace(self._memory, ended_usd=usd)
        return "the budget is spent"

    def _useful(self) -> tuple[str, ...]:
        return self._found.of(Phase.serving, Phase.launching)

    def _staying(self) -> tuple[str, ...]:
        return self._found.of(Phase.serving, Phase.launching, Phase.silent)

    def _price(self, name: str) -> float:
        return self._offers[self._found.pools[name]].usd_per_hour

    def _cost(self, machines: Mapping[str, int]) -> float:
        return sum(count * self._offers[pool].usd_per_hour for pool, count in machines.items())

    def _credit(self, name: str) -> float:
        return credit(name, self._found.pools[name], self._memory, self._offers)

    def _worth(self, name: str) -> tuple[float, bool, str]:
        """Sorts what gives nothing first, and of equals what has not served yet."""
        return self._credit(name) / self._price(name), self._found.phases[name] is Phase.serving, name


def _order(name: str, stage: Ending) -> Order:
    match stage:
        case Ending.rest:
            return Rest(name)
        case Ending.leave:
            return Leave(name)
        case Ending.end:
            return End(name)
