"""The cost of a fleet's plan, and the share that it saves of generation at the learner's own place."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from echo_queue.capacity.bounds.offers import HOUR_S, rate_at
from echo_queue.capacity.fleet_file import Centralised, Fleet, Form, Pool
from echo_queue.capacity.inputs import Assumed, Price
from echo_queue.capacity.plan.comparison import DOUBLE, HALF, SHARES, baselines, changed, inputs
from echo_queue.capacity.plan.document import PlannedSet
from echo_queue.capacity.plan.planning import Setting, plan_setting, with_prices
from echo_queue.capacity.plan.search import eligible, predicted

REPORTED = (0.333, 0.363)
"""ECHO-2's saving of the cumulative cost at equal accuracy (arXiv 2602.02192, figure 3a)."""
INTERRUPTIONS, BOOT_S = 0.1, 300.0
"""Interruptions of the pools of the map, in an hour of a machine: assumed, as for the pools of the fleet files."""
MOST_MACHINES = 500


@dataclass(frozen=True)
class Saving:
    """The cost of an update, and the share that this saves of the same run at one site: in turns, or beside it."""

    usd_per_update: float | None
    of_sync: float | None
    of_async: float | None


@dataclass(frozen=True)
class Edge:
    """The prices at which a saving is `REPORTED`, as shares of the price of the site's GPU: dearest and cheapest.

    `rate`: tokens per second, as a share of the site's. A price is None if not even free machines save so much.
    """

    form: Form
    rate: float
    link_gbit: float
    of_sync: tuple[float | None, float | None]
    of_async: tuple[float | None, float | None]


@dataclass(frozen=True)
class Offered:
    """A pool of the file by itself: price and rate of a GPU as shares of the site's, and what it saves."""

    pool: str
    on: str
    price: float
    rate: float
    link_gbit: float
    saving: Saving


@dataclass(frozen=True)
class Halved:
    """The savings with an assumed number halved, and doubled; None if there is no plan."""

    key: str
    value: float
    half: Saving | None
    twice: Saving | None


def saving(fleet: Fleet, *, form: Form | None = None, peers: bool | None = None) -> Saving:
    """Plans a fleet whose pools all have prices. `form`, `peers`: the way of the weights, if not the file's."""
    weights = fleet.weights
    chosen = plan_setting(fleet, fleet.run.s, form or weights.form, peers=weights.peers if peers is None else peers)
    return against(fleet, chosen, chosen.usd_per_update)


def against(fleet: Fleet, chosen: PlannedSet, usd_per_update: float | None) -> Saving:
    """Returns the saving of updates at this price. The site publishes as the file says, whatever the fleet does."""
    costs = {one.kind: one.usd_per_update for one in baselines(fleet, chosen)}
    shares = [
        1 - usd_per_update / costs[kind] if usd_per_update is not None and kind in costs else None
        for kind in ("sync", "async")
    ]
    return Saving(usd_per_update, *shares)


def site_of(fleet: Fleet) -> Centralised:
    """Returns generation at the learner's own place, without which nothing can be compared."""
    if fleet.centralised is None:
        raise ValueError(f"the fleet file of {fleet.name} has no section `centralised`")
    return fleet.centralised


def uniform(fleet: Fleet, *, price: float, rate: float, link_gbit: float) -> Fleet:
    """Returns the fleet with one pool only, whose GPUs have this share of the site's price and rate.

    A sample is as fast as at the site: a slower GPU holds fewer of them.
    """
    site = site_of(fleet)
    pool = Pool(
        gpu="any",
        cloud="any",
        region="any",
        max_machines=MOST_MACHINES,
        price=Price(usd_per_hour=price * site.price.usd_per_hour, on=site.price.on, source="of the map"),
        interruptions_per_hour=Assumed(assumed=INTERRUPTIONS, why="as of the file's pools"),
        boot_s=Assumed(assumed=BOOT_S, why="as of the file's pools"),
        link_gbit=Assumed(assumed=link_gbit, why="of the map"),
        samples_at_once=max(fleet.run.group_size, round(site.samples_at_once * rate)),
        tokens_per_s={length: one.times(rate) for length, one in site.tokens_per_s.items()},
    )
    return fleet.model_copy(update={"pools": {"any": pool}})


def edge(fleet: Fleet, form: Form, rate: float, link_gbit: float) -> Edge:
    """Returns the prices between which the savings are those that are reported.

    One pool's cheapest set is the one with the fewest machines, whatever their price, so cost is linear in the price.
    """
    at_site = uniform(fleet, price=1.0, rate=rate, link_gbit=link_gbit)
    chosen = plan_setting(at_site, at_site.run.s, form, peers=at_site.weights.peers)
    found = {one.kind: one.usd_per_update for one in baselines(at_site, chosen)}

    def price_for(kind: str, share: float) -> float | None:
        if not chosen.reached or chosen.usd_per_update is None:
            return None
        hourly = (1 - share) * found[kind] / chosen.usd_per_update * chosen.usd_per_hour  # type: ignore[index]
        price = (hourly - at_site.learner.price.usd_per_hour) / chosen.pools_usd_per_hour
        return price if price > 0 else None

    prices = [tuple(price_for(kind, share) for share in REPORTED) for kind in ("sync", "async")]
    return Edge(form, rate, link_gbit, *prices)  # type: ignore[arg-type]


def offered(fleet: Fleet) -> Iterator[Offered]:
    """Yields the file's pools, each as the only one, with as many machines as are needed."""
    priced, site = with_prices(fleet), site_of(fleet)
    mean = fleet.lengths.mean_tokens.value
    at_site = rate_at(site.tokens_per_s, mean)
    for name, pool in priced.pools.items():
        assert pool.price is not None, name
        alone = priced.model_copy(update={"pools": {name: pool.model_copy(update={"max_machines": MOST_MACHINES})}})
        yield Offered(
            name,
            str(pool.price.on),
            price=pool.price.usd_per_hour / pool.gpus / site.price.usd_per_hour,
            rate=(rate_at(pool.tokens_per_s, mean) or 0.0) / (at_site or 1.0),
            link_gbit=pool.link_gbit.value,
            saving=saving(alone),
        )


def in_proportion(fleet: Fleet) -> Saving:
    """Returns the saving if machines are taken as the pools have them, and not the cheapest for their work."""
    setting = Setting(fleet, fleet.run.s, fleet.weights.form, fleet.weights.peers)
    chosen = plan_setting(fleet, fleet.run.s, fleet.weights.form, peers=fleet.weights.peers)
    costs = [cost for kappa in setting.kappas if (cost := _proportional_cost(setting, kappa)) is not None]
    return against(fleet, chosen, min(costs, default=None))


def _proportional_cost(setting: Setting, kappa: int) -> float | None:
    """Returns what an update costs with the fewest machines that suffice, or else with those that make it cheapest."""
    goal, learner = setting.goal(kappa, setting.fleet.run.utilisation), setting.fleet.learner
    offers = eligible(setting.offers(kappa), goal)
    limits, least = [one.limit for one in offers], math.inf
    for count in range(1, sum(limits) + 1):
        machines = dict(zip((one.name for one in offers), _shared(count, limits), strict=True))
        usd_per_hour = learner.price.usd_per_hour + sum(
            one.usd_per_hour * machines[one.name] + one.entry_usd_per_hour * (machines[one.name] > 0) for one in offers
        )
        if (busy := predicted(offers, machines, goal)) == 0:
            continue
        cost = usd_per_hour * learner.t_train_s.value / HOUR_S / busy
        if busy >= goal.wanted:
            return cost
        least = min(least, cost)
    return least if least < math.inf else None


def _shared(count: int, limits: Sequence[int]) -> list[int]:
    """Shares a number out in proportion to `limits`, in whole numbers."""
    ends = [round(count * sum(limits[: place + 1]) / sum(limits)) for place in range(len(limits))]
    return [end - begin for begin, end in zip([0, *ends], ends, strict=False)]


def halved(fleet: Fleet) -> Iterator[Halved]:
    """Yields every assumed number of the file with the savings that half and twice of it give, all planned anew."""
    priced = with_prices(fleet)
    for one in inputs(priced):
        if one.kind == "assumed" and one.value > 0:
            twice = min(1 / one.value, DOUBLE) if one.key in SHARES else DOUBLE
            yield Halved(one.key, one.value, _with(priced, one.key, HALF), _with(priced, one.key, twice))


def _with(fleet: Fleet, key: str, factor: float) -> Saving | None:
    other: Fleet = changed(fleet, key.split("."), factor)
    mean = other.lengths.mean_tokens.value
    rates = [site_of(other).tokens_per_s, *(pool.tokens_per_s for pool in other.pools.values())]
    return None if any(rate_at(one, mean) is None for one in rates) else saving(other)
