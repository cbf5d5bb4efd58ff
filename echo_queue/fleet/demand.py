"""The learner's demand, and what a machine of each pool gives for it, by the plan's own bounds (`echo_queue.capacity`).

The fleet file says how fast machines are; the run says how fast its learner really is, and by which rules. All
functions are pure.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import NamedTuple

from echo_queue.capacity.bounds.offers import PlannedOffer
from echo_queue.capacity.bounds.utilisation import supply_needed
from echo_queue.capacity.fleet_file import Fleet
from echo_queue.capacity.plan.planning import LOWER_GOALS, Setting
from echo_queue.capacity.plan.search import Chosen, Goal, cheapest, eligible, slowest_path
from echo_queue.fleet.drivers.protocol import Quote
from echo_queue.fleet.state import Offer
from echo_queue.queue import RunRules
from echo_queue.reporting.metrics import UpdateMetrics

RECENT = 16
"""Updates that say how fast the learner is."""
LATELY_S = 60.0
"""The time in which an update that says whether the learner waits has ended; if none has, the last one says so. Waits
from before the fleet was mended would have it mended again."""


class Pace(NamedTuple):
    """The speed of the learner. `t_train_s`: seconds of an update; `waits`: the share of its time without groups."""

    t_train_s: float
    waits: float


@dataclass(frozen=True)
class Demand:
    """`needed`: groups per second that keep the learner as busy as `utilisation`, and what each pool offers for it.

    `prices`: in words, by pool, where prices of now come from, or why the fleet file's counts. `impossible`: why no set
    of machines keeps the learner busy at all; empty if one does.
    """

    needed: float
    utilisation: float
    offers: tuple[Offer, ...]
    prices: Mapping[str, str] = field(default_factory=dict)
    impossible: str = ""


def pace_of(updates: Sequence[UpdateMetrics], planned_s: float, now_s: float) -> Pace:
    """Returns the pace of the last updates, and the waits of the last minute; what was planned while there is none.

    A learner that has waited for longer since its last update than it ever did before counts as waiting from then on.
    """
    recent = updates[-RECENT:]
    if not recent:
        return Pace(planned_s, 1.0)
    t_train_s = max(1e-3, median(one.train_s + one.save_s for one in recent))
    lately = [one for one in recent if one.time_s > now_s - LATELY_S] or recent[-1:]
    busy_s = sum(one.train_s + one.save_s for one in lately)
    since_s = max(0.0, now_s - recent[-1].time_s - t_train_s)
    waited_s = sum(one.wait_s for one in lately) + since_s
    return Pace(t_train_s, waited_s / max(1e-3, waited_s + busy_s))


def demand(fleet: Fleet, rules: RunRules, pace: Pace, quotes: Mapping[str, Quote], here: Mapping[str, int]) -> Demand:
    """Returns what is needed, for the cheapest set that can be had.

    `here`: machines of each pool that there are. If no set keeps the learner as busy as the fleet file wants, the
    nearest utilisation that one reaches is aimed at. Pools that are too slow for it offer nothing.
    """
    measured = fleet.learner.t_train_s.times(pace.t_train_s / fleet.learner.t_train_s.value)
    run = fleet.run.model_copy(update={"groups_per_update": rules.batch})
    learner = fleet.learner.model_copy(update={"t_train_s": measured})
    fleet = fleet.model_copy(update={"learner": learner, "run": run})
    setting = Setting(fleet, rules.s, fleet.weights.form, fleet.weights.peers)
    kappa = rules.kappa if isinstance(rules.kappa, int) else 1
    planned = tuple(_quoted(fleet, setting.offers(kappa), quotes, here))
    prices = dict(_prices(fleet, quotes))
    groups_per_s = rules.batch / pace.t_train_s
    aimed = _aimed(setting, planned, kappa)
    if aimed is None:
        offers = tuple(_offer(fleet, one, groups_per_s, usable=False) for one in planned)
        return Demand(0.0, 0.0, offers, prices, _obstacle(planned, setting.goal(kappa, LOWER_GOALS[-1], budget=False)))
    goal, path = aimed.goal, slowest_path(planned, aimed.machines, aimed.goal)
    usable = {one.name for one in eligible(planned, goal) if one.path.away_s <= path.away_s}
    needed = supply_needed(goal.wanted, goal.s, kappa, goal.t_train_s, path) * groups_per_s
    offers = tuple(_offer(fleet, one, groups_per_s, usable=one.name in usable) for one in planned)
    return Demand(needed, goal.wanted, offers, prices)


def _quoted(
    fleet: Fleet, planned: Sequence[PlannedOffer], quotes: Mapping[str, Quote], here: Mapping[str, int]
) -> Iterator[PlannedOffer]:
    """Yields the offers with the prices and numbers of now. What a machine pays for traffic stays as planned."""
    for one in planned:
        quote, stated = quotes.get(one.name, Quote()), fleet.pools[one.name].price
        limit = one.limit if quote.available is None else min(one.limit, here.get(one.name, 0) + quote.available)
        dearer = 0.0 if quote.usd_per_hour is None or stated is None else quote.usd_per_hour - stated.usd_per_hour
        yield one._replace(usd_per_hour=one.usd_per_hour + dearer, limit=limit)


def _prices(fleet: Fleet, quotes: Mapping[str, Quote]) -> Iterator[tuple[str, str]]:
    """Yields pool and words for each quote that says something of its price."""
    for name, quote in quotes.items():
        stated = fleet.pools[name].price if name in fleet.pools else None
        if quote.said and quote.usd_per_hour is not None:
            yield name, f"{quote.usd_per_hour:g} USD: {quote.said}"
        elif quote.said and stated:
            yield name, f"{stated.usd_per_hour:g} USD, as the fleet file says of {stated.on}: {quote.said}"


def _aimed(setting: Setting, planned: tuple[PlannedOffer, ...], kappa: int) -> Chosen | None:
    """Returns the cheapest set for what is wanted, or else for the highest utilisation that can be reached."""
    for wanted in (setting.fleet.run.utilisation, *LOWER_GOALS):
        goal: Goal = setting.goal(kappa, wanted, budget=False)
        if chosen := cheapest([(planned, goal)]):
            return chosen
    return None


def _obstacle(planned: Sequence[PlannedOffer], goal: Goal) -> str:
    """Returns why no set reaches even this goal, by what stands in the way first: machines, weights, S, or supply."""
    share, update = f"{goal.wanted:.0%}", f"{goal.t_train_s:.3g} s"
    none = f"no set of these pools keeps the learner busy for even {share} of its time"
    there = [one for one in planned if one.limit > 0]
    if not there:
        return f"{none}: no pool has a machine to give ({', '.join(one.name for one in planned)})"
    pools = eligible(there, goal)
    if not pools:
        nearest = min(there, key=lambda one: one.broadcast_s)
        between = f"{goal.kappa * goal.t_train_s:.3g} s"
        return (
            f"{none}: new weights take {nearest.broadcast_s:.3g} s to {nearest.name}, the nearest pool, and the next "
            f"ones are published after {between}; publish more rarely (staleness.kappa), or give pools faster links"
        )
    supply = sum(one.supply * one.limit for one in pools)
    if supply < goal.wanted:
        machines = sum(one.limit for one in pools)
        return f"{none}: all {machines} machines that may be had make {supply:.1%} of the groups that it trains"
    return (
        f"{none}: weights and groups are under way for {pools[0].path.away_s:.3g} s at least, from {pools[0].name}, "
        f"which is too long for S = {goal.s} and updates of {update}; raise S, or take machines that generate faster"
    )


def _offer(fleet: Fleet, one: PlannedOffer, groups_per_s: float, *, usable: bool) -> Offer:
    boot_s = fleet.pools[one.name].boot_s.value
    return Offer(one.name, one.usd_per_hour, one.supply * groups_per_s, one.limit if usable else 0, boot_s)
