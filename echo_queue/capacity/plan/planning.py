"""Finds the cheapest machines for a bound S and a way of the weights; utilisation is by `bounds/utilisation.py`."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from echo_queue.capacity.bounds.dissemination import Dissemination, dissemination
from echo_queue.capacity.bounds.offers import PlannedOffer, generation, lengths_of, offer
from echo_queue.capacity.bounds.utilisation import serial_utilisation, staleness_bound, utilisation
from echo_queue.capacity.estimate.lag import lag
from echo_queue.capacity.fleet_file import Fleet, Form
from echo_queue.capacity.plan.document import Binds, PlannedSet
from echo_queue.capacity.plan.search import TOLERANCE, Chosen, Goal, cheapest, eligible, predicted, slowest_path

LOWER_GOALS = (0.95, 0.9, 0.85, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.05)
"""Utilisations whose cheapest sets are compared by what an update costs, beside or instead of what is wanted."""


@dataclass(frozen=True)
class Setting:
    """One thing to plan: a bound and a way of the weights, for a fleet whose pools all have prices."""

    fleet: Fleet
    s: int
    form: Form
    peers: bool

    @property
    def way(self) -> Dissemination:
        links = [pool.link_gbit.value / pool.gpus for pool in self.fleet.pools.values()]
        slowest = min(self.fleet.learner.link_gbit.value, *links)
        return dissemination(self.fleet.weights, self.form, peers=self.peers, slowest_gbit=slowest)

    @property
    def kappas(self) -> Sequence[int]:
        """The publication periods that may be planned. Beyond S + 1 nothing is fresh enough to train."""
        kappa = self.fleet.run.kappa
        return range(1, max(1, self.s) + 1) if kappa == "any" else (min(kappa, self.s + 1),)

    def offers(self, kappa: int) -> tuple[PlannedOffer, ...]:
        way = self.way
        return tuple(offer(self.fleet, name, way, s=self.s, kappa=kappa) for name in self.fleet.pools)

    def goal(self, kappa: int, wanted: float, *, budget: bool = True) -> Goal:
        fleet, way = self.fleet, self.way
        limit = fleet.budget.usd_per_hour if budget else None
        return Goal(
            self.s,
            kappa,
            fleet.learner.t_train_s.value,
            wanted,
            next_worker_s=way.next_worker_s,
            store_s=0.0 if self.peers else way.next_worker_s,
            budget_usd_per_hour=math.inf if limit is None else limit - fleet.learner.price.usd_per_hour,
        )


def with_prices(fleet: Fleet) -> Fleet:
    """Returns the fleet without the pools whose price is unknown."""
    pools = {name: pool for name, pool in fleet.pools.items() if pool.price}
    return fleet.model_copy(update={"pools": pools})


def plan_setting(fleet: Fleet, s: int, form: Form, *, peers: bool) -> PlannedSet:
    """Returns the cheapest set for this bound and this way of the weights, and what is to be said of it."""
    setting = Setting(fleet, s, form, peers)
    wanted = fleet.run.utilisation
    found = _search(setting, wanted)
    if found:
        return _outcome(setting, found, reached=True)
    lower = _least_per_update(setting)
    return replace(lower, binds=_obstacle(setting)) if lower else _nothing(setting)


def cheaper_per_update(fleet: Fleet, chosen: PlannedSet) -> PlannedSet | None:
    """Returns a set with which the learner is less busy, and an update costs less than with the chosen one, if any."""
    found = _least_per_update(Setting(fleet, chosen.s, chosen.form, chosen.peers))
    if found is None or found.usd_per_update is None or chosen.usd_per_update is None:
        return None
    return found if found.usd_per_update < chosen.usd_per_update * (1 - TOLERANCE) else None


def _least_per_update(setting: Setting) -> PlannedSet | None:
    goals = (goal for goal in LOWER_GOALS if goal < setting.fleet.run.utilisation)
    sets = [lower for goal in goals if (lower := _search(setting, goal))]
    outcomes = [_outcome(setting, one, reached=False) for one in sets]
    return min(outcomes, key=lambda one: one.usd_per_update or math.inf, default=None)


def _search(setting: Setting, wanted: float, *, budget: bool = True) -> Chosen | None:
    return cheapest((setting.offers(kappa), setting.goal(kappa, wanted, budget=budget)) for kappa in setting.kappas)


def _outcome(setting: Setting, found: Chosen, *, reached: bool) -> PlannedSet:
    fleet, goal = setting.fleet, found.goal
    offers = setting.offers(goal.kappa)
    used = [one for one in offers if one.name in found.machines]
    busy, path = predicted(offers, found.machines, goal), slowest_path(offers, found.machines, goal)
    workers = sum(one.workers * found.machines[one.name] for one in used)
    t_bcast_s = max(one.broadcast_s for one in used) + (workers - 1) * goal.next_worker_s
    supply = sum(one.supply * found.machines[one.name] for one in used)
    groups = [generation(fleet, fleet.pools[one.name]) for one in used]
    staleness = staleness_bound(goal.s, goal.kappa, goal.t_train_s, path) if goal.s else None
    longest_s = max(fleet.lengths.most_tokens * one.mean_s / _mean_tokens(fleet) for one in groups)
    per_hour = found.usd_per_hour + fleet.learner.price.usd_per_hour
    per_update = per_hour * goal.t_train_s / 3_600 / busy
    return PlannedSet(
        s=goal.s,
        kappa=goal.kappa,
        form=setting.form,
        peers=setting.peers,
        machines=found.machines,
        reached=reached,
        binds=_binding(supply, staleness, t_bcast_s, path.away_s),
        utilisation=busy,
        supply=supply,
        staleness=staleness,
        serial_utilisation=serial_utilisation(supply, goal.kappa, t_train_s=goal.t_train_s, t_bcast_s=t_bcast_s),
        t_bcast_s=t_bcast_s,
        group_s=max(one.tail_s for one in groups),
        worst_lag=lag(goal.s, goal.kappa, t_train_s=goal.t_train_s, t_bcast_s=t_bcast_s, t_gen_s=longest_s).worst
        if goal.s
        else 0,
        late_share=late_share(fleet, goal, t_bcast_s, used, found.machines),
        pools_usd_per_hour=found.usd_per_hour,
        usd_per_hour=per_hour,
        usd_per_update=per_update,
        usd_per_million_tokens=per_update / update_tokens(fleet) * 1e6,
        usd_per_run=per_update * fleet.run.updates if fleet.run.updates else None,
    )


def _nothing(setting: Setting) -> PlannedSet:
    """The outcome where no machine helps at all."""
    price = setting.fleet.learner.price.usd_per_hour
    return PlannedSet(
        s=setting.s,
        kappa=setting.kappas[-1],
        form=setting.form,
        peers=setting.peers,
        machines={},
        reached=False,
        binds=_obstacle(setting),
        utilisation=0.0,
        supply=0.0,
        staleness=None,
        serial_utilisation=0.0,
        t_bcast_s=None,
        group_s=None,
        worst_lag=None,
        late_share=0.0,
        pools_usd_per_hour=0.0,
        usd_per_hour=price,
        usd_per_update=None,
        usd_per_million_tokens=None,
        usd_per_run=None,
    )


def update_tokens(fleet: Fleet) -> float:
    """Returns the tokens that an update trains: R · G · mean length."""
    return fleet.run.groups_per_update * fleet.run.group_size * fleet.lengths.mean_tokens.value


def late_share(
    fleet: Fleet, goal: Goal, t_bcast_s: float, used: Sequence[PlannedOffer], machines: Mapping[str, int]
) -> float:
    """Returns the share of groups that take longer than S · T_train − T_bcast, and so are generated again.

    It is a lower bound: a group also waits until it is leased and until it is drained. At S = 0 the learner waits for
    all. Each pool counts by its supply.
    """
    if goal.s == 0:
        return 0.0
    room_s = goal.s * goal.t_train_s - t_bcast_s
    lengths = lengths_of(fleet)
    shares = {one.name: one.supply * machines[one.name] for one in used}
    late = 0.0
    for one in used:
        made = generation(fleet, fleet.pools[one.name])
        tokens = room_s * lengths.mean_of_longest(fleet.run.group_size) / made.mean_s
        late += shares[one.name] * lengths.share_longer(tokens, fleet.run.group_size)
    return late / sum(shares.values())


def _mean_tokens(fleet: Fleet) -> float:
    return lengths_of(fleet).mean_of_longest(fleet.run.group_size)


def _binding(supply: float, staleness: float | None, t_bcast_s: float, away_s: float) -> Binds:
    """Returns the least of the three bounds. The time that weights are away is its publication's, or generation's."""
    way: Binds = "dissemination" if t_bcast_s > away_s / 2 else "staleness"
    if staleness is None:
        return way
    least: dict[Binds, float] = {"learner": 1.0, "throughput": supply, way: staleness}
    return min(least, key=lambda name: least[name])


def _obstacle(setting: Setting) -> Binds:
    """Returns why no set keeps the learner as busy as is wanted.

    The budget does if a set would without it, else dissemination or staleness if even endless supply would not
    suffice, else the machines that may be had.
    """
    fleet, wanted = setting.fleet, setting.fleet.run.utilisation
    if fleet.budget.usd_per_hour is not None and _search(setting, wanted, budget=False):
        return "money"
    fastest = [
        (pools[0], setting.goal(kappa, wanted))
        for kappa in setting.kappas
        if (pools := eligible(setting.offers(kappa), setting.goal(kappa, wanted)))
    ]
    if not fastest:
        return "dissemination"
    if any(utilisation(math.inf, goal.s, goal.kappa, goal.t_train_s, one.path) >= wanted for one, goal in fastest):
        return "throughput"
    return "dissemination" if all(one.broadcast_s > one.path.away_s / 2 for one, _ in fastest) else "staleness"
