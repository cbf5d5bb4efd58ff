"""Prints where ECHO-2's saving lies on a map of price, rate and link, and what deltas, peers and the rest add to it.

    python -m benchmarks.cost [--fleets configs/fleets] [--on 2026-11-23] [--json]

The map and the sensitivities are those of `qwen3-8b-math`, whose model ECHO-2 trained as well.
"""

import argparse
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from benchmarks.cost.saving import (
    REPORTED,
    Edge,
    Halved,
    Offered,
    Saving,
    edge,
    halved,
    in_proportion,
    offered,
    saving,
)
from benchmarks.verdict import conclude
from echo_queue.capacity.fleet_file import Fleet, Form
from echo_queue.capacity.inputs import Assumed
from echo_queue.capacity.loading import load_fleet
from echo_queue.capacity.plan.planning import with_prices

FORMS: tuple[Form, ...] = ("delta", "snapshot")
MAP_OF = "qwen3-8b-math"
AS_IT_IS = "  as its file has it"
RATES, LINKS = (0.25, 0.5, 1.0, 2.0), (0.01, 0.1, 1.0)
SLOW_GBIT, MORE_INTERRUPTIONS = 0.1, 10.0
UNCHANGED = 0.005
"""An assumption that moves no saving by more is only named."""
WIDTH = 80


@dataclass(frozen=True)
class Parts:
    """The savings of a fleet in one condition, with all parts and without one of them. `none`: without any."""

    fleet: str
    condition: str
    all: Saving
    no_deltas: Saving
    no_peers: Saving
    no_partials: Saving
    no_activation: Saving
    none: Saving


@dataclass(frozen=True)
class Figures:
    """`saving`, `edges`, `halves`: of the fleet of the map. `offers`: by fleet."""

    map_of: str
    saving: Saving
    edges: Sequence[Edge]
    offers: Mapping[str, Sequence[Offered]]
    parts: Sequence[Parts]
    halves: Sequence[Halved]


def conditions(fleet: Fleet) -> Iterator[tuple[str, Fleet]]:
    """Yields the fleet as its file has it, with slow links, and with many interruptions."""
    # Without peers the learner's own place serves all readers, by its link.
    weights = fleet.weights.model_copy(update={"store_gbit": fleet.learner.link_gbit})
    free = with_free_kappa(fleet).model_copy(update={"weights": weights})
    slow = Assumed(assumed=SLOW_GBIT, why="of the condition")
    yield AS_IT_IS, free
    yield f"  links of {SLOW_GBIT:g} Gbit/s", _with_pools(free, link_gbit=lambda pool: slow)
    yield (
        f"  {MORE_INTERRUPTIONS:g} times the interruptions",
        _with_pools(free, interruptions_per_hour=lambda pool: pool.interruptions_per_hour.times(MORE_INTERRUPTIONS)),
    )


def with_free_kappa(fleet: Fleet) -> Fleet:
    """Returns the fleet whose κ is the plan's choice, since weights that take long are published less often."""
    return fleet.model_copy(update={"run": fleet.run.model_copy(update={"kappa": "any"})})


def _with_pools(fleet: Fleet, **new: object) -> Fleet:
    pools = {
        name: pool.model_copy(update={key: make(pool) for key, make in new.items()})  # type: ignore[operator]
        for name, pool in fleet.pools.items()
    }
    return fleet.model_copy(update={"pools": pools})


def parts(fleet: Fleet, condition: str) -> Parts:
    """Plans a fleet, whose pools all have prices, with all parts and without each of them."""
    no_progress = fleet.model_copy(update={"run": fleet.run.model_copy(update={"progress_s": None})})
    plain = no_progress.weights.model_copy(update={"form": "snapshot", "peers": False})
    return Parts(
        fleet.name,
        condition,
        all=saving(fleet),
        no_deltas=saving(fleet, form="snapshot"),
        no_peers=saving(fleet, peers=False),
        no_partials=saving(no_progress),
        no_activation=in_proportion(fleet),
        none=in_proportion(no_progress.model_copy(update={"weights": plain})),
    )


def measure(fleets: Sequence[Fleet]) -> Figures:
    first = fleets[0]
    return Figures(
        first.name,
        saving(with_prices(first)),
        [edge(with_free_kappa(first), form, rate, link) for form in FORMS for rate in RATES for link in LINKS],
        {fleet.name: list(offered(fleet)) for fleet in fleets},
        [parts(one, name) for fleet in fleets for name, one in conditions(with_prices(fleet))],
        list(halved(first)),
    )


def lines(figures: Figures) -> Iterator[str]:
    low, high = REPORTED
    yield f"{figures.map_of}: the price of a GPU, as a share of the site's, at which a fleet"
    yield f"saves the {low:.1%} to {high:.1%} that ECHO-2 reports"
    yield f"{'form':<9} {'rate':>5} {'Gbit/s':>7} {'of sync':>16} {'of async':>16}"
    for one in figures.edges:
        prices = f"{_between(one.of_sync):>16} {_between(one.of_async):>16}"
        yield f"{one.form:<9} {one.rate:>5.2f} {one.link_gbit:>7.2f} {prices}"
    yield "\nDated offers, each alone"
    yield f"{'':<29} {'price of':>10} {'price':>5} {'rate':>5} {'Gbit/s':>6} {'of sync':>8} {'of async':>8}"
    for fleet, offers in figures.offers.items():
        for offer in offers:
            yield (
                f"{f'{fleet}, {offer.pool}':<29} {offer.on:>10} {offer.price:>5.2f} {offer.rate:>5.2f}"
                f" {offer.link_gbit:>6.1f} {_savings(offer.saving)}"
            )
    yield "\nSaving with all parts, and without"
    names = ("all", "deltas", "peers", "partial", "activ.", "any")
    yield f"{'':<41}" + "".join(f"{name:>8}" for name in names)
    for row in figures.parts:
        if row.condition == AS_IT_IS:
            yield row.fleet
        arms = (row.all, row.no_deltas, row.no_peers, row.no_partials, row.no_activation, row.none)
        for kind in ("sync", "async"):
            shares = "".join(f"{_share(getattr(arm, f'of_{kind}')):>8}" for arm in arms)
            yield f"{f'{row.condition}, {kind}':<41}{shares}"
    yield f"\n{figures.map_of}: savings with half and with twice of what is assumed"
    yield f"{'':<31} {'value':>7}  {'half: sync':>10} {'async':>8} {'twice: sync':>13} {'async':>8}"
    moving = [entry for entry in figures.halves if _moves(entry, figures.saving)]
    for entry in moving:
        yield f"{entry.key:<31} {entry.value:>7g}    {_savings(entry.half)}      {_savings(entry.twice)}"
    still = ", ".join(entry.key for entry in figures.halves if entry not in moving)
    yield from textwrap.wrap(f"These change it by less than {UNCHANGED:.1%}: {still}.", WIDTH)


def _moves(entry: Halved, usual: Saving) -> bool:
    """Returns whether half or twice of an assumption changes a saving, or leaves the fleet without a plan."""
    for found in (entry.half, entry.twice):
        for share, before in zip(_shares(found), _shares(usual), strict=True):
            if share is None or before is None or abs(share - before) >= UNCHANGED:
                return True
    return False


def _shares(one: Saving | None) -> tuple[float | None, float | None]:
    return (one.of_sync, one.of_async) if one else (None, None)


def _between(prices: tuple[float | None, float | None]) -> str:
    dearest, cheapest = prices
    return "no price" if dearest is None else f"{dearest:.2f} to {cheapest or 0:.2f}"


def _savings(one: Saving | None) -> str:
    of_sync, of_async = _shares(one)
    return f"{_share(of_sync):>8} {_share(of_async):>8}"


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.1%}"


def targets(figures: Figures) -> Mapping[str, bool]:
    """Returns whether the map is whole: each edge lies where its saving is reached, and each assumption was tried."""
    falling = [
        dearest is None or cheapest is None or dearest > cheapest
        for one in figures.edges
        for dearest, cheapest in (one.of_sync, one.of_async)
    ]
    return {
        "cheaper machines save more, all over the map": all(falling),
        "every assumption was halved and doubled, but for lengths without rates": all(
            entry.half and entry.twice for entry in figures.halves if entry.key != "lengths.mean_tokens"
        ),
    }


def fleets_in(folder: Path, on: date) -> Sequence[Fleet]:
    """Returns the fleets of a folder, that of the map first."""
    files = sorted(folder.glob("*.toml"), key=lambda path: (path.stem != MAP_OF, path.stem))
    return [load_fleet(path, on) for path in files]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fleets", type=Path, default=Path("configs/fleets"))
    parser.add_argument("--on", type=date.fromisoformat, default=date(2026, 11, 23), help="the day of the plan")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    figures = measure(fleets_in(options.fleets, options.on))
    print("\n".join(lines(figures)), flush=True)
    return conclude(figures, targets(figures), as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
