"""The whole plan: the chosen set beside other bounds, other ways of the weights and centralised generation."""

import math
from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from typing import Any

from echo_queue.capacity.bounds.offers import HOUR_S, generation, lost_s, offer, rate_at, useful_share
from echo_queue.capacity.bounds.utilisation import Path, utilisation
from echo_queue.capacity.fleet_file import Budget, Centralised, Fleet, Form, Pool
from echo_queue.capacity.inputs import Assumed, Measured, Price, TrafficPrice
from echo_queue.capacity.loading import age_days, prices
from echo_queue.capacity.plan.document import Baseline, Input, Plan, PlannedSet, PoolFigures, Sensitivity
from echo_queue.capacity.plan.planning import Setting, cheaper_per_update, plan_setting, update_tokens, with_prices
from echo_queue.capacity.plan.scenarios import scenario_of
from echo_queue.capacity.simulation import simulate

WAYS: tuple[tuple[Form, bool], ...] = (("snapshot", False), ("snapshot", True), ("delta", False), ("delta", True))
NEIGHBOURS = (-2, -1, 1, 2, 4)
"""The bounds beside S with which a plan is compared if the fleet file names none."""
AT_SITE = "site"
HALF, DOUBLE = 0.5, 2.0
SHARES = ("run.accepted", "weights.change")
"""Numbers that stay at most 1 when they are doubled."""


def plan(fleet: Fleet, on: date) -> Plan:
    """Returns the plan of a fleet that was loaded. `on`: the day on which prices are judged."""
    priced = with_prices(fleet)
    s, form, peers = fleet.run.s, fleet.weights.form, fleet.weights.peers
    chosen = plan_setting(priced, s, form, peers=peers)
    others = fleet.run.compare_s or tuple(s + step for step in NEIGHBOURS if s + step >= 0)
    ways = (way for way in WAYS if way != (form, peers))
    setting = Setting(priced, s, form, peers)
    return Plan(
        fleet=fleet.name,
        on=on,
        by="bounds",
        wanted_utilisation=fleet.run.utilisation,
        chosen=chosen,
        simulated=simulate(scenario_of(setting, chosen.kappa, chosen.machines)) if chosen.machines else None,
        cheaper=cheaper_per_update(priced, chosen) if chosen.reached else None,
        pools=tuple(_pool_figures(setting, chosen, on)),
        old_prices=tuple(key for key, one in prices(priced) if age_days(one, on) > fleet.prices.oldest_days),
        left_out={name: "its price is unknown" for name in fleet.pools if name not in priced.pools}
        | dict(_too_slow(setting)),
        other_bounds=tuple(plan_setting(priced, other, form, peers=peers) for other in others if other != s),
        other_ways=tuple(plan_setting(priced, s, form, peers=peers) for form, peers in ways),
        baselines=tuple(baselines(priced, chosen)),
        inputs=tuple(inputs(fleet)),
        sensitivities=tuple(_sensitivities(priced, chosen)),
    )


def costs_by_bound(fleet: Fleet, bounds: Sequence[int]) -> Mapping[str, Sequence[tuple[int, float]]]:
    """Returns for each way of the weights, by its name, what an update costs at each bound that has a plan."""
    priced = with_prices(fleet)
    found = {
        way_name(form, peers): [(s, plan_setting(priced, s, form, peers=peers).usd_per_update) for s in bounds]
        for form, peers in WAYS
    }
    return {name: [(s, cost) for s, cost in line if cost is not None] for name, line in found.items()}


def way_name(form: Form, peers: bool) -> str:
    """Returns what a way of the weights is called: its form, and who serves it."""
    return f"{form}, {'peers' if peers else 'store'}"


def _pool_figures(setting: Setting, chosen: PlannedSet, on: date) -> Iterator[PoolFigures]:
    """Yields the pools, those whose accepted groups cost least first."""
    fleet = setting.fleet
    assumed = [one.key for one in inputs(fleet) if one.kind == "assumed"]
    figures = []
    for name, pool in fleet.pools.items():
        assert pool.price is not None, name
        made, one = generation(fleet, pool), offer(fleet, name, setting.way, s=setting.s, kappa=chosen.kappa)
        groups_per_s = one.supply * fleet.run.groups_per_update / fleet.learner.t_train_s.value
        age = age_days(pool.price, on)
        found = PoolFigures(
            name=name,
            gpu=pool.gpu,
            region=pool.region,
            machines=chosen.machines.get(name, 0),
            max_machines=pool.max_machines,
            usd_per_hour=one.usd_per_hour,
            useful_share=useful_share(
                pool.interruptions_per_hour.value, pool.boot_s.value, lost_s(made.mean_s, fleet.run.progress_s)
            ),
            supply=one.supply,
            usd_per_thousand_groups=one.usd_per_hour / (groups_per_s * HOUR_S) * 1_000,
            t_bcast_s=one.broadcast_s,
            group_s=made.tail_s,
            age_days=age,
            old=age > fleet.prices.oldest_days,
            assumed=tuple(key for key in assumed if key.startswith(f"pools.{name}.")),
        )
        figures.append(found)
    yield from sorted(figures, key=lambda one: one.usd_per_thousand_groups)


def _too_slow(setting: Setting) -> Iterator[tuple[str, str]]:
    """Yields the pools to which weights take longer than the longest publication period that may be planned."""
    kappa = setting.kappas[-1]
    period_s = kappa * setting.fleet.learner.t_train_s.value
    for one in setting.offers(kappa):
        if setting.s and one.broadcast_s > period_s:
            yield one.name, f"its T_bcast, {one.broadcast_s:,.0f} s, is longer than κ·T_train, {period_s:,.0f} s"


def baselines(fleet: Fleet, chosen: PlannedSet) -> Iterator[Baseline]:
    """Yields generation at the learner's own place, if the file says what that costs; pools must have prices."""
    if fleet.centralised is None:
        return
    yield _sync(fleet, fleet.centralised, chosen)
    if found := _async(fleet, fleet.centralised, chosen):
        yield found


def _sync(fleet: Fleet, site: Centralised, chosen: PlannedSet) -> Baseline:
    """Returns the learner that generates on its own GPUs and trains in turns, with weights that travel in no time."""
    gpus, t_train_s, price = fleet.learner.gpus, fleet.learner.t_train_s.value, fleet.learner.price.usd_per_hour
    made = generation(fleet, site)
    supply = gpus * made.groups_per_s * fleet.run.accepted.value * t_train_s / fleet.run.groups_per_update
    busy = utilisation(supply, 0, 1, t_train_s, Path(made.batch_s, made.mean_s / 2))
    return _baseline(fleet, chosen, ("sync", gpus), busy, price)


def _async(fleet: Fleet, site: Centralised, chosen: PlannedSet) -> Baseline | None:
    """Returns the learner with further GPUs of its kind beside it, planned as a pool without interruptions."""
    none = Assumed(assumed=0.0, why="machines on demand")
    pool = Pool(
        gpu="as the learner's",
        cloud=AT_SITE,
        region=AT_SITE,
        max_machines=500,
        price=site.price,
        interruptions_per_hour=none,
        boot_s=none,
        link_gbit=site.link_gbit,
        tokens_per_s=site.tokens_per_s,
        samples_at_once=site.samples_at_once,
    )
    learner = fleet.learner.model_copy(update={"link_gbit": site.link_gbit})
    alone = fleet.model_copy(update={"pools": {AT_SITE: pool}, "learner": learner, "budget": Budget()})
    found = plan_setting(alone, fleet.run.s, fleet.weights.form, peers=fleet.weights.peers)
    if not found.machines:
        return None
    return _baseline(fleet, chosen, ("async", found.machines[AT_SITE]), found.utilisation, found.usd_per_hour)


def _baseline(fleet: Fleet, chosen: PlannedSet, kind: tuple[Any, int], busy: float, usd_per_hour: float) -> Baseline:
    per_update = usd_per_hour * fleet.learner.t_train_s.value / HOUR_S / busy
    saving = 1 - chosen.usd_per_update / per_update if chosen.usd_per_update else None
    return Baseline(*kind, busy, usd_per_hour, per_update, per_update / update_tokens(fleet) * 1e6, saving)


def inputs(fleet: Fleet) -> Iterator[Input]:
    """Yields every measured number, every assumed one and every price of the file, with its key."""
    yield from _inputs_in(fleet, "")


def _inputs_in(value: Any, key: str) -> Iterator[Input]:
    match value:
        case Measured():
            yield Input(key, "measured", value.measured, value.source)
        case Assumed():
            yield Input(key, "assumed", value.assumed, value.why)
        case Price():
            yield Input(key, "price", value.usd_per_hour, value.source, value.on)
        case TrafficPrice():
            yield Input(key, "price", value.usd_per_gb, value.source, value.on)
        case _:
            for name, inner in _members(value):
                yield from _inputs_in(inner, f"{key}.{name}".lstrip("."))


def _members(value: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(value, dict):
        yield from value.items()
    elif hasattr(value, "model_fields_set"):
        yield from value


def _sensitivities(fleet: Fleet, chosen: PlannedSet) -> Iterator[Sensitivity]:
    """Yields what an update costs with each assumed number halved and doubled, the machines being planned anew.

    The numbers of pools that are not in use are left out, and those of the baselines.
    """
    table = fleet.model_copy(
        update={"pools": {name: fleet.pools[name] for name in chosen.machines}, "centralised": None}
    )
    for one in inputs(table):
        if one.kind == "assumed" and one.value > 0:
            half, double = (_cost_with(fleet, one, factor) for factor in (HALF, DOUBLE))
            yield Sensitivity(one.key, half, double)


def _cost_with(fleet: Fleet, one: Input, factor: float) -> float | None:
    most = 1 / one.value if one.key in SHARES else math.inf
    other = changed(fleet, one.key.split("."), min(factor, most))
    other = other.model_copy(update={"pools": _with_rates(other)})
    return plan_setting(other, fleet.run.s, fleet.weights.form, peers=fleet.weights.peers).usd_per_update


def _with_rates(fleet: Fleet) -> dict[str, Pool]:
    """Returns the pools; one without a rate near the mean length has that of the nearest length which it names."""
    mean, pools = fleet.lengths.mean_tokens.value, dict(fleet.pools)
    for name, pool in fleet.pools.items():
        rates = pool.tokens_per_s
        if rate_at(rates, mean) is None:
            nearest = min(rates, key=lambda length: abs(math.log(length / mean)))
            pools[name] = pool.model_copy(update={"tokens_per_s": {max(1, round(mean)): rates[nearest]}})
    return pools


def changed(value: Any, path: list[str], factor: float) -> Any:
    """Returns the value, such as a fleet, with the number at this path multiplied."""
    if not path:
        return value.times(factor)
    name, *rest = path
    if isinstance(value, dict):
        place = next(known for known in value if str(known) == name)
        return {**value, place: changed(value[place], rest, factor)}
    inner = changed(getattr(value, name), rest, factor)
    return value.model_copy(update={name: inner})
