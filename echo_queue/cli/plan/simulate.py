"""`echo-queue simulate`: prints how busy a fleet would keep a learner, how old its data would be, and its price.

All figures are of a simulation (`echo_queue/capacity/simulation`); nothing runs but its clock.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from rich.console import Console
from rich.table import Table

from echo_queue.capacity.loading import load_fleet
from echo_queue.capacity.plan.planning import with_prices
from echo_queue.capacity.plan.scenarios import scenario_at
from echo_queue.capacity.simulation import Figures, simulate
from echo_queue.cli.output import print_json
from echo_queue.errors import ConfigError, Problem

WIDTH = 80
MOST_BOUNDS = 5
"""As many columns fit the table's width."""
Row = tuple[str, Callable[[Figures], str]]


@dataclass(frozen=True)
class SimulationDocument:
    """`simulate`: the figures of one simulation for each bound S."""

    seed: int
    simulations: tuple[Figures, ...]


def show(file: Path, bounds: str, *, seed: int, as_json: bool) -> None:
    """Simulates the fleet of `file` with each bound, or its own one. Raises `ConfigError` for what is wrong in it."""
    fleet = with_prices(load_fleet(file, date.today()))
    each = _bounds(bounds) if bounds else [fleet.run.s]
    found = SimulationDocument(seed, tuple(simulate(scenario_at(fleet, s, seed)) for s in each))
    if as_json:
        print_json(found)
        return
    console = Console(highlight=False, width=WIDTH)
    console.print(_table(found.simulations))
    console.print()
    for sentence in sentences(found.simulations):
        console.print(sentence)


def _bounds(text: str) -> list[int]:
    words = text.split(",")
    if not all(word.isdecimal() for word in words) or len(words) > MOST_BOUNDS:
        what = f"{text!r} is not a list of bounds"
        raise ConfigError(Problem("--s", what, f"give at most {MOST_BOUNDS} whole numbers, such as --s 2,4,8"))
    return [int(word) for word in words]


def _share(share: float) -> str:
    return f"{share:.1%}"


ROWS: tuple[Row, ...] = (
    ("κ, updates per publication", lambda one: f"{one.kappa}"),
    ("supply, of what the learner needs", lambda one: _share(one.supply)),
    ("learner trains", lambda one: _share(one.utilisation)),
    *((f"  waits: {cause}", lambda one, cause=cause: _share(one.waits[cause])) for cause in Figures.causes()),
    ("seconds per update", lambda one: f"{one.seconds / one.updates:,.1f}"),
    ("mean lag, in updates", lambda one: f"{one.mean_lag:.2f}"),
    ("worst lag", lambda one: f"{one.worst_lag}"),
    ("groups trained", lambda one: f"{one.groups:,}"),
    ("too old, and generated again", lambda one: f"{one.sent_back:,}"),
    ("given up", lambda one: f"{one.dead:,}"),
    ("machines lost", lambda one: f"{one.machines_lost:,}"),
    ("machines generate", lambda one: _share(one.busy_share)),
    ("work lost with machines", lambda one: _share(one.lost_share)),
    ("work thrown away as too old", lambda one: _share(one.stale_share)),
    ("$ per update", lambda one: "–" if one.usd_per_update is None else f"{one.usd_per_update:,.4f}"),
)


def _table(simulations: Sequence[Figures]) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    for one in simulations:
        table.add_column(f"S = {one.s}", justify="right", no_wrap=True)
    for name, figure in ROWS:
        table.add_row(name, *(figure(one) for one in simulations))
    return table


ADVICE = {
    "machines": "all machines are busy: more or faster machines would help",
    "weights": "weights are on their way: a faster broadcast, or a smaller κ, would help",
    "bound": "S admits no more tasks: a larger S would help",
    "pace": "the window admits no more tasks: it widens while the learner waits",
    "late groups": "a group came too late before: a larger S, or shorter generation, would help",
}
"""What each cause of waiting means for the user."""
LITTLE = 0.01
"""A wait that takes less than this share of the learner's time is not worth a sentence."""


def sentences(simulations: Sequence[Figures]) -> list[str]:
    """Returns, for each bound, what the learner waited for most, if it waited long enough to speak of."""
    spoken = []
    for one in simulations:
        cause = max(one.waits, key=one.waits.__getitem__)
        if one.waits[cause] > LITTLE:
            spoken.append(f"S = {one.s}: the learner waits mostly because {ADVICE[cause]}.")
    return spoken
