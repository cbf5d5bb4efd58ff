"""How long a plan takes: the cheapest machines of 200 pools, against the cheapest of their continuous relaxation.

The pools are drawn by a seed, unlike in everything: price, rate, link, limit, price of traffic. The figure is the
slowest of several searches; the baseline is what the machines would cost if they could be divided, which no whole set
can beat.

    python -m benchmarks.plan [--pools 200] [--searches 5] [--json]
"""

import argparse
import random
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date

from benchmarks.verdict import conclude
from echo_queue.capacity.fleet_file import Fleet
from echo_queue.capacity.plan.planning import Setting, plan_setting
from echo_queue.capacity.plan.search import relaxed_cost

MOST_S = 2.0
TODAY = date(2026, 1, 1)
SEED = 1


@dataclass(frozen=True)
class Figures:
    """`gap`: what whole machines cost more than divided ones, as a share, at most over all searches.

    `slowest_cpu_s`: processor time, which other work on this machine does not lengthen much.
    """

    pools: int
    searches: int
    slowest_s: float
    slowest_cpu_s: float
    gap: float


def assumed(value: float) -> dict[str, object]:
    return {"assumed": value, "why": "drawn"}


def price(usd: float) -> dict[str, object]:
    return {"usd_per_hour": usd, "on": TODAY, "source": "drawn"}


def drawn_pool(rng: random.Random) -> dict[str, object]:
    rate = rng.uniform(500, 5_000)
    return {
        "gpu": "drawn",
        "cloud": "drawn",
        "region": "drawn",
        "gpus": rng.choice((1, 1, 1, 4, 8)),
        "max_machines": rng.randint(1, 12),
        "price": price(rate / 4_000 * rng.uniform(0.3, 1.5)),
        "reading": {"usd_per_gb": rng.choice((0.0, 0.02, 0.09)), "on": TODAY, "source": "drawn"},
        "interruptions_per_hour": assumed(rng.uniform(0, 0.5)),
        "boot_s": assumed(rng.uniform(60, 900)),
        "link_gbit": assumed(rng.choice((0.1, 0.5, 1, 10))),
        "samples_at_once": rng.choice((16, 32, 64)),
        "tokens_per_s": {1_024: assumed(rate)},
    }


def drawn_fleet(pools: int, seed: int) -> Fleet:
    """Returns a fleet of unlike pools, of which a few dozen machines suffice."""
    rng = random.Random(seed)
    values = {
        "format": 1,
        "name": "drawn",
        "run": {"s": 4, "kappa": "any", "groups_per_update": 1_024, "group_size": 16, "accepted": assumed(0.98)},
        "lengths": {"mean_tokens": assumed(1_024), "spread": assumed(0.6), "most_tokens": 4_096},
        "learner": {"gpus": 8, "price": price(20), "t_train_s": assumed(60), "link_gbit": assumed(10)},
        "weights": {"parameters": 8_000_000_000, "change": assumed(0.02)},
        "pools": {f"pool-{number}": drawn_pool(rng) for number in range(pools)},
    }
    return Fleet.model_validate(values)


def searches(pools: int, count: int) -> Iterator[tuple[float, float, float]]:
    """Yields the seconds of a search, its processor time and its gap. A small one comes first and imports scipy."""
    plan_setting(drawn_fleet(2, SEED), 4, "delta", peers=True)
    for seed in range(SEED, SEED + count):
        fleet = drawn_fleet(pools, seed)
        began, began_cpu = time.perf_counter(), time.process_time()
        outcome = plan_setting(fleet, fleet.run.s, "delta", peers=True)
        took_s, took_cpu_s = time.perf_counter() - began, time.process_time() - began_cpu
        yield took_s, took_cpu_s, outcome.pools_usd_per_hour / least_cost(fleet) - 1


def least_cost(fleet: Fleet) -> float:
    """Returns what the cheapest divisible machines cost, over all publication periods and slowest pools."""
    setting = Setting(fleet, fleet.run.s, "delta", True)
    choices = [(setting.offers(kappa), setting.goal(kappa, fleet.run.utilisation)) for kappa in setting.kappas]
    return relaxed_cost(choices)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pools", type=int, default=200)
    parser.add_argument("--searches", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    took = list(searches(arguments.pools, arguments.searches))
    figures = Figures(
        arguments.pools,
        arguments.searches,
        *(max(column) for column in zip(*took, strict=True)),
    )
    print(f"{figures.pools} pools: the slowest of {figures.searches} searches took {figures.slowest_s:.2f} s", end="")
    print(f", {figures.slowest_cpu_s:.2f} s of a processor")
    print(f"baseline: divisible machines cost up to {figures.gap:.2%} less, a ratio of {1 + figures.gap:.4f}")
    return conclude(
        figures,
        {f"a search takes {MOST_S:g} s of a processor at most": figures.slowest_cpu_s <= MOST_S},
        as_json=arguments.json,
    )


if __name__ == "__main__":
    sys.exit(main())
