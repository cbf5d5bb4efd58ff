"""The cheapest whole machines with which a learner is busy enough, found exactly by `scipy.optimize.milp` (HiGHS).

The slowest pool that is used decides how late groups are, so each set of pools that are no slower than one of them is
searched by itself: how late groups may come is then known, and the supply needed a linear constraint. With each worker
that a chain or a store has to serve, T_bcast grows, and the supply needed grows convexly with it: a solution that lacks
supply adds the line that touches this curve there, until one lacks none. Sets whose continuous relaxation costs more
than what was found are not searched.
"""

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from echo_queue.capacity.bounds.offers import PlannedOffer
from echo_queue.capacity.bounds.utilisation import Path, slowest, supply_needed, utilisation
from echo_queue.capacity.plan.integer_program import Floats, constraint, solve

TOLERANCE = 1e-7
"""Relative; within it two costs are equal."""
MOST_LINES = 50


class Goal(NamedTuple):
    """What a set must do. `wanted`: the learner's utilisation. `budget_usd_per_hour`: of the pools.

    `next_worker_s`: what each further worker adds to the way. `store_s`: what each takes of the store's time for each
    publication.
    """

    s: int
    kappa: int
    t_train_s: float
    wanted: float
    next_worker_s: float = 0.0
    store_s: float = 0.0
    budget_usd_per_hour: float = math.inf


class Chosen(NamedTuple):
    """A set of machines by pool, and what it costs. The pools that it leaves out are not named."""

    goal: Goal
    machines: Mapping[str, int]
    usd_per_hour: float


class _Level(NamedTuple):
    """The pools that are no slower than `path`, and the least that any set of them with enough supply costs."""

    goal: Goal
    path: Path
    offers: tuple[PlannedOffer, ...]
    least_usd_per_hour: float

    def needed(self, workers: int) -> float:
        goal = self.goal
        path = self.path.later(max(0, workers - 1) * goal.next_worker_s)
        return supply_needed(goal.wanted, goal.s, goal.kappa, goal.t_train_s, path)


def eligible(offers: Iterable[PlannedOffer], goal: Goal) -> tuple[PlannedOffer, ...]:
    """Returns the offers whose weights arrive before the next ones are published, the fastest way first.

    At S = 0 nothing is published before all groups are there.
    """
    period_s = goal.kappa * goal.t_train_s if goal.s else math.inf
    kept = (one for one in offers if one.broadcast_s <= period_s and one.limit > 0 and one.supply > 0)
    return tuple(sorted(kept, key=lambda one: (one.path.away_s, one.name)))


def slowest_path(offers: Iterable[PlannedOffer], machines: Mapping[str, int], goal: Goal) -> Path:
    """Returns the way of the slowest pool in use, for all workers of the set.

    Each of its times is the longest of all eligible pools that are no slower, so that a set's way does not depend on
    which of them are used.
    """
    pools = eligible(offers, goal)
    away_s = max(one.path.away_s for one in pools if machines.get(one.name))
    workers = sum(one.workers * machines.get(one.name, 0) for one in pools)
    path = slowest(one.path for one in pools if one.path.away_s <= away_s)
    return path.later((workers - 1) * goal.next_worker_s)


def predicted(offers: Iterable[PlannedOffer], machines: Mapping[str, int], goal: Goal) -> float:
    """Returns the learner's utilisation with this set by the bounds, for pools that are all eligible."""
    offers = tuple(offers)
    supply = sum(one.supply * machines.get(one.name, 0) for one in offers)
    if not supply:
        return 0.0
    return utilisation(supply, goal.s, goal.kappa, goal.t_train_s, slowest_path(offers, machines, goal))


def cheapest(choices: Iterable[tuple[Sequence[PlannedOffer], Goal]]) -> Chosen | None:
    """Returns the cheapest set that reaches its goal, over all choices; None if no set does.

    A choice is a goal, such as one publication period, with the offers as they are under it. Of choices that come to
    the same cost the first is taken. Raises `ConfigError` without scipy.
    """
    levels = [tuple(_levels(offers, goal)) for offers, goal in choices]
    best = _cheapest_of(itertools.chain(*levels), math.inf)
    for choice in levels:
        if best is None or (choice and choice[0].goal == best.goal):
            break
        if same := _cheapest_of(choice, best.usd_per_hour * (1 + TOLERANCE)):
            return same
    return best


def relaxed_cost(choices: Iterable[tuple[Sequence[PlannedOffer], Goal]]) -> float:
    """Returns what no set that reaches its goal can cost less than: the price of machines that could be divided."""
    levels = (level.least_usd_per_hour for offers, goal in choices for level in _levels(offers, goal))
    return min(levels, default=math.inf)


def _cheapest_of(levels: Iterable[_Level], most_usd: float) -> Chosen | None:
    """Returns the cheapest set that costs no more than this."""
    best: Chosen | None = None
    for level in sorted(levels, key=lambda one: one.least_usd_per_hour):
        if level.least_usd_per_hour > most_usd:
            break
        if found := _solve(level, min(most_usd, level.goal.budget_usd_per_hour)):
            best, most_usd = found, found.usd_per_hour * (1 - TOLERANCE)
    return best


def _levels(offers: Sequence[PlannedOffer], goal: Goal) -> Iterator[_Level]:
    pools = eligible(offers, goal)
    for place, (one, path) in enumerate(zip(pools, accumulate((one.path for one in pools), _slower), strict=True)):
        if place + 1 < len(pools) and pools[place + 1].path.away_s == one.path.away_s:
            continue
        level = _Level(goal, path, pools[: place + 1], 0.0)
        least = _relaxed_cost(level)
        if least <= goal.budget_usd_per_hour:
            yield level._replace(least_usd_per_hour=least)


def _slower(one: Path, other: Path) -> Path:
    return slowest((one, other))


def _relaxed_cost(level: _Level) -> float:
    """Returns what a set of the level costs at least, if all machines but one of its slowest pools could be divided.

    A set without a machine of the slowest pools belongs to a faster level. Divided machines that are cheapest for each
    unit of supply come first, with their share of the cost of entry.
    """
    needed = level.needed(1)
    if needed == math.inf:
        return math.inf
    cost = np.array([one.usd_per_hour + one.entry_usd_per_hour / one.limit for one in level.offers])
    supply = np.array([one.supply for one in level.offers])
    slowest = np.array([one.path.away_s == level.path.away_s for one in level.offers])
    order = np.argsort(cost / supply)
    given = np.array([one.limit for one in level.offers]) * supply
    supplies, costs = (np.concatenate([[0.0], np.cumsum(each[order])]) for each in (given, given / supply * cost))
    rest = np.maximum(0.0, needed - supply[slowest])
    if rest.min() > supplies[-1]:
        return math.inf
    return float(np.min(cost[slowest] + np.interp(rest, supplies, costs, right=math.inf)))


def _most_workers(level: _Level) -> int:
    """Returns the largest number of workers that the way and the store can serve, by bisection."""
    goal = level.goal
    most = sum(one.workers * one.limit for one in level.offers)
    if goal.store_s > 0 and goal.s > 0:
        most = min(most, math.floor(goal.kappa * goal.t_train_s / goal.store_s))
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if level.needed(middle) < math.inf else (low, middle - 1)
    return low


def _solve(level: _Level, most_usd: float) -> Chosen | None:
    """Returns the cheapest set of the level's pools below this cost, if any."""
    offers, most_workers = level.offers, _most_workers(level)
    supply, workers = (np.array([getattr(one, name) for one in offers], float) for name in ("supply", "workers"))
    lines = [_line(level, 1, most_workers)]
    for _ in range(MOST_LINES):
        machines = _integers(offers, lines, workers, most_workers, most_usd)
        if machines is None:
            return None
        served, given = round(float(workers @ machines)), float(supply @ machines)
        if given >= level.needed(served) * (1 - 1e-7):
            entry = sum(one.entry_usd_per_hour for one, count in zip(offers, machines, strict=True) if count)
            cost = float(machines @ np.array([one.usd_per_hour for one in offers])) + entry
            chosen = {one.name: int(count) for one, count in zip(offers, machines, strict=True) if count}
            return Chosen(level.goal, chosen, cost)
        lines.append(_line(level, served, most_workers))
    raise AssertionError("a convex curve needs few lines")


def _line(level: _Level, workers: int, most_workers: int) -> tuple[float, float]:
    """Returns slope and height at 0 of a line below the supply needed by any number of workers, touching it here."""
    here = level.needed(workers)
    if not level.goal.next_worker_s or most_workers < 2:
        return 0.0, here
    other = workers - 1 if workers > 1 else 2
    slope = (level.needed(other) - here) / (other - workers)
    return slope, here - slope * workers


def _integers(
    offers: Sequence[PlannedOffer],
    lines: Sequence[tuple[float, float]],
    workers: Floats,
    most_workers: int,
    most_usd: float,
) -> Floats | None:
    """Returns the cheapest machines of each offer ([N]) on or above all lines of (slope, height); None if none are.

    A pool with a cost of entry has a second variable, which is 1 if any machine of it is used.
    """
    entries = [place for place, one in enumerate(offers) if one.entry_usd_per_hour > 0]
    count, more = len(offers), len(entries)
    cost = np.array([*(one.usd_per_hour for one in offers), *(offers[place].entry_usd_per_hour for place in entries)])
    limits = np.array([one.limit for one in offers], float)
    supply = np.array([one.supply for one in offers])
    padding = np.zeros(more)
    rows = [np.concatenate([supply - slope * workers, padding]) for slope, _ in lines]
    least = [height for _, height in lines]
    constraints = [
        constraint(np.array(rows), least=np.array(least)),
        constraint(np.concatenate([workers, padding])[None], most=most_workers),
    ]
    if most_usd < math.inf:
        constraints.append(constraint(cost[None], most=most_usd))
    if entries:
        used = np.zeros((more, count + more))
        used[np.arange(more), entries], used[np.arange(more), count + np.arange(more)] = 1.0, -limits[entries]
        constraints.append(constraint(used, most=0.0))
    found = solve(cost, constraints, lower=0, upper=np.concatenate([limits, np.ones(more)]))
    return None if found is None else found[:count]
