"""The search finds what trying every set finds, and what it finds keeps its promise."""

import itertools
import math
import random
from collections.abc import Iterator, Mapping, Sequence

import pytest

from echo_queue.capacity.bounds.offers import PlannedOffer
from echo_queue.capacity.bounds.utilisation import Path, utilisation
from echo_queue.capacity.plan.search import Chosen, Goal, cheapest, predicted

Choice = tuple[Sequence[PlannedOffer], Goal]


def random_choices(rng: random.Random) -> list[Choice]:
    """One small fleet, under each publication period that it may have."""
    s = rng.choice((0, 1, 2, 3, 4, 6, 8))
    periods = range(1, rng.randint(1, max(1, s)) + 1)
    names = [f"p{number}" for number in range(rng.randint(1, 4))]
    base = {name: random_offer(rng, name) for name in names}
    further_s = rng.choice((0.0, 0.0, 0.01, 0.1))
    by_store = rng.random() < 0.3
    wanted = rng.choice((0.3, 0.5, 0.8, 0.97)) if s else rng.uniform(0.1, 0.5)
    budget = rng.choice((math.inf, math.inf, rng.uniform(0.5, 12)))
    return [
        (
            [one._replace(usd_per_hour=one.usd_per_hour * (1 + 0.2 / kappa)) for one in base.values()],
            Goal(s, kappa, 1.0, wanted, further_s, further_s if by_store else 0.0, budget),
        )
        for kappa in periods
    ]


def random_offer(rng: random.Random, name: str) -> PlannedOffer:
    broadcast_s, group_s = rng.choice((0.05, 0.3, 1.5)), rng.choice((0.1, 0.5, 1.0, 2.0))
    spread = rng.choice((1.0, 2.0, 4.0))
    ways_s = tuple(broadcast_s + group_s * factor for factor in (1 / spread, 1.0, spread))
    return PlannedOffer(
        name,
        usd_per_hour=rng.uniform(0.1, 3),
        entry_usd_per_hour=rng.choice((0.0, 0.0, rng.uniform(0.01, 1))),
        supply=rng.uniform(0.05, 0.8),
        workers=rng.choice((1, 1, 2, 8)),
        limit=rng.randint(1, 4),
        broadcast_s=broadcast_s,
        path=Path(sum(ways_s) / 3, broadcast_s + group_s * rng.choice((0.2, 0.5)), ways_s),
    )


def every_set(offers: Sequence[PlannedOffer]) -> Iterator[Mapping[str, int]]:
    for counts in itertools.product(*(range(one.limit + 1) for one in offers)):
        if any(counts):
            yield {one.name: count for one, count in zip(offers, counts, strict=True) if count}


def keeps(offers: Sequence[PlannedOffer], machines: Mapping[str, int], goal: Goal) -> bool:
    """The promise in its own words, without the code that is tested."""
    used = [one for one in offers if one.name in machines]
    period_s = goal.kappa * goal.t_train_s
    workers = sum(machines[one.name] * one.workers for one in used)
    if goal.s and (any(one.broadcast_s > period_s for one in used) or workers * goal.store_s > period_s):
        return False
    known = [one for one in offers if not goal.s or one.broadcast_s <= period_s]
    away_s = max(one.path.away_s for one in used)
    paths = [one.path for one in known if one.path.away_s <= away_s]
    path = Path(
        away_s, max(path.lead_s for path in paths), tuple(max(path.ways_s[n] for path in paths) for n in range(3))
    )
    more_s = (workers - 1) * goal.next_worker_s
    supply = sum(machines[one.name] * one.supply for one in used)
    busy = utilisation(supply, goal.s, goal.kappa, goal.t_train_s, path.later(more_s))
    return busy >= goal.wanted and cost(offers, machines) <= goal.budget_usd_per_hour


def cost(offers: Sequence[PlannedOffer], machines: Mapping[str, int]) -> float:
    used = [one for one in offers if one.name in machines]
    return sum(one.usd_per_hour * machines[one.name] + one.entry_usd_per_hour for one in used)


def least_cost(choices: Sequence[Choice]) -> float:
    return min(
        (cost(offers, one) for offers, goal in choices for one in every_set(offers) if keeps(offers, one, goal)),
        default=math.inf,
    )


def check(seed: int) -> Chosen | None:
    choices = random_choices(random.Random(seed))
    found, least = cheapest(choices), least_cost(choices)
    assert (found.usd_per_hour if found else math.inf) == pytest.approx(least, rel=1e-6), seed
    if found:
        offers = next(offers for offers, goal in choices if goal == found.goal)
        assert cost(offers, found.machines) == pytest.approx(found.usd_per_hour)
        assert predicted(offers, found.machines, found.goal) >= found.goal.wanted - 1e-6
    return found


def test_the_cheapest_set_is_that_of_trying_every_one() -> None:
    found = [check(seed) for seed in range(40)]
    assert any(found) and not all(found), "fleets that can and fleets that cannot"


@pytest.mark.slow
def test_it_is_on_500_fleets() -> None:
    assert sum(check(seed) is not None for seed in range(500)) > 100
