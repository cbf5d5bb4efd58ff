"""Reads a fleet file and checks it whole: every problem is reported together, before anything is planned."""

import re
from collections.abc import Iterator
from datetime import date
from pathlib import Path

from pydantic import ValidationError

from echo_queue.capacity.bounds.offers import REACH, rate_at
from echo_queue.capacity.fleet_file import CLOUDS, Churn, Engine, Fleet, Pool
from echo_queue.capacity.inputs import Price, TrafficPrice
from echo_queue.config.explanations import explain
from echo_queue.config.loading import read_toml
from echo_queue.errors import ConfigError, Problem

REFERENCE, EXAMPLE = "docs/capacity.md", "configs/fleets/qwen3-0.6b-spot.toml"
REGION = re.compile(r"[a-z]+(-[a-z]+)+-?[0-9]+")
INSTANCE_TYPE = re.compile(r"[a-z][a-z0-9-]*[.-][a-z0-9.-]+")
"""As infra/terraform/modules/fleet_plan/pools.schema.json has them."""
MOST_TYPES, MOST_USD_PER_HOUR = 40, 200
FIXES = {
    "bare_number": 'write { measured = NUMBER, source = "..." } or { assumed = NUMBER, why = "..." }',
}

HEEDED = {"staleness": {"pace", "late", "late_deadline_s"}, "queue": {"lease_s", "max_attempts"}}
"""The keys of a run's configuration by which a simulation goes."""


def load_fleet(path: Path, on: date) -> Fleet:
    """Reads and checks `path`. `on`: the day on which prices are judged. Raises `ConfigError` with every problem."""
    values = read_toml(path)
    if isinstance(values.get("pools"), list):
        what = "is a file of an earlier `simulate`, which now reads the fleet file that `plan` reads"
        fix = f"copy {EXAMPLE}; what a simulation alone reads is its [simulation] (docs/simulation.md)"
        raise ConfigError(Problem(str(path), what, fix))
    if "pools" not in values and "prompts" in values:
        what = "is a run's configuration, not a fleet file, which says what its machines can do and cost"
        raise ConfigError(Problem(str(path), what, f"copy {EXAMPLE} and write your machines into it ({REFERENCE})"))
    try:
        fleet = Fleet.model_validate(values)
    except ValidationError as error:
        raise ConfigError(*explain(error, values, Fleet, REFERENCE, FIXES)) from None
    if problems := (
        *_contradictions(fleet),
        *_pool_problems(fleet),
        *_simulation_problems(fleet),
        *_price_problems(fleet, on),
    ):
        raise ConfigError(*problems)
    return fleet


def prices(fleet: Fleet) -> Iterator[tuple[str, Price | TrafficPrice]]:
    """Yields every price of the file with its key."""
    yield "learner.price", fleet.learner.price
    if fleet.centralised:
        yield "centralised.price", fleet.centralised.price
    for name, pool in fleet.pools.items():
        if pool.price:
            yield f"pools.{name}.price", pool.price
        if pool.reading:
            yield f"pools.{name}.reading", pool.reading


def age_days(price: Price | TrafficPrice, on: date) -> int:
    """Returns the age of a price in days."""
    return (on - price.on).days


def _contradictions(fleet: Fleet) -> Iterator[Problem]:
    run, lengths, budget = fleet.run, fleet.lengths, fleet.budget.usd_per_hour
    if run.kappa != "any" and run.kappa > run.s + 1:
        updates = f"{run.s + 1} updates" if run.s else "one update"
        what = f"κ = {run.kappa} with S = {run.s}: after {updates} without a publication nothing is fresh enough"
        yield Problem("run.kappa", what, f"set kappa to {run.s + 1} or less, or s to {run.kappa - 1} or more")
    if lengths.mean_tokens.value > lengths.most_tokens:
        what = f"the mean sample is longer than the longest, {lengths.most_tokens} tokens"
        yield Problem("lengths.mean_tokens", what, "correct one of them")
    if budget is not None and budget <= fleet.learner.price.usd_per_hour:
        what = f"{budget:g} USD an hour does not even pay for the learner, {fleet.learner.price.usd_per_hour:g}"
        yield Problem("budget.usd_per_hour", what, "raise it, or leave it out")


def _pool_problems(fleet: Fleet) -> Iterator[Problem]:
    engines: dict[str, Engine] = {f"pools.{name}": pool for name, pool in fleet.pools.items()}
    if fleet.centralised:
        engines["centralised"] = fleet.centralised
    mean = fleet.lengths.mean_tokens.value
    for where, engine in engines.items():
        if rate_at(engine.tokens_per_s, mean) is None:
            given = " and ".join(str(length) for length in sorted(engine.tokens_per_s))
            what = f"the run's samples have {mean:g} tokens, and the rates are those at {given}"
            fix = f"add a rate at a length within a factor of {REACH:g}, because length moves it several times over"
            yield Problem(f"{where}.tokens_per_s", what, fix)
        if engine.samples_at_once < fleet.run.group_size:
            what = f"a GPU generates {engine.samples_at_once} samples at once, and a group has {fleet.run.group_size}"
            yield Problem(f"{where}.samples_at_once", what, "give the rate with at least a group in flight")
    for name, pool in fleet.pools.items():
        yield from _unfit_for_terraform(f"pools.{name}", pool)


def _unfit_for_terraform(where: str, pool: Pool) -> Iterator[Problem]:
    """Yields what fleet_plan would refuse of a pool in a cloud that it knows."""
    if pool.cloud not in CLOUDS:
        return
    if not REGION.fullmatch(pool.region):
        yield Problem(f"{where}.region", f"{pool.region!r} is no region of {pool.cloud}", "name one, such as us-east-1")
    types = pool.instance_types
    if (
        not 1 <= len(types) <= MOST_TYPES
        or len(set(types)) < len(types)
        or not all(map(INSTANCE_TYPE.fullmatch, types))
    ):
        what = f"a pool in {pool.cloud} needs 1 to {MOST_TYPES} different instance types"
        yield Problem(f"{where}.instance_types", what, 'name them, such as ["g6.xlarge"]')
    if pool.price and pool.price.usd_per_hour > MOST_USD_PER_HOUR:
        what = f"{pool.price.usd_per_hour:g} USD an hour is more than Terraform's module takes, {MOST_USD_PER_HOUR}"
        yield Problem(f"{where}.price.usd_per_hour", what, "give the price of one machine")


def _simulation_problems(fleet: Fleet) -> Iterator[Problem]:
    simulation = fleet.simulation
    for key, named in (("machines", simulation.machines), ("churn", simulation.churn)):
        for name in sorted(set(named) - set(fleet.pools)):
            yield Problem(f"simulation.{key}.{name}", "is no pool", f"name one of {', '.join(fleet.pools)}")
    for name in simulation.machines:
        if name in fleet.pools and fleet.pools[name].price is None:
            yield Problem(f"simulation.machines.{name}", "has no price", f"give pools.{name}.price")
    churn = [simulation.churn.get(name, Churn()) for name in simulation.machines or fleet.pools]
    if all(one.begins_s > 0 for one in churn) or all(one.ends_s is not None for one in churn):
        fix = "give one pool neither begins_s nor ends_s"
        yield Problem("simulation.churn", "at times there is no pool at all", fix)
    for section, heeded in HEEDED.items():
        for key in sorted(getattr(simulation, section).model_fields_set - heeded):
            fix = "remove it: [run] has S and κ, and the rest changes no figure"
            yield Problem(f"simulation.{section}.{key}", "is not read by a simulation", fix)


def _price_problems(fleet: Fleet, on: date) -> Iterator[Problem]:
    rules = fleet.prices
    for where, price in prices(fleet):
        age = age_days(price, on)
        if age < 0:
            yield Problem(f"{where}.on", f"{price.on} is after {on}", "give the day on which the price was seen")
        elif age > rules.oldest_days and rules.old == "refuse":
            what = f"the price is {age} days old, and prices.oldest_days is {rules.oldest_days}"
            yield Problem(f"{where}.on", what, 'look it up again, or set prices.old = "mark" to plan with it')
    unknown = [name for name, pool in fleet.pools.items() if pool.price is None]
    if rules.old == "refuse":
        for name in unknown:
            fix = 'look it up, or set prices.old = "mark" to leave the pool out'
            yield Problem(f"pools.{name}.price", "is unknown", fix)
    elif len(unknown) == len(fleet.pools):
        yield Problem("pools", "no pool has a price", "look one up")
