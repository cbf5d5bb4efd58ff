"""`echo-queue plan`: which machines to rent for a learner, what an update costs, and what if S or the weights' way were
another, as a table of 80 columns, as JSON, as a plot, and as the pools file of Terraform.
"""

from collections.abc import Iterator, Sequence
from datetime import date
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

import orjson
from rich.console import Console, Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from echo_queue.capacity.bounds.lengths import TAIL
from echo_queue.capacity.bounds.utilisation import SIMULATED_UP_TO
from echo_queue.capacity.fleet_file import Fleet
from echo_queue.capacity.loading import load_fleet
from echo_queue.capacity.plan.comparison import costs_by_bound, plan, way_name
from echo_queue.capacity.plan.document import Plan, PlannedSet, Sensitivity
from echo_queue.capacity.plan.pools_file import elsewhere, pools_file
from echo_queue.cli.output import print_json
from echo_queue.errors import ConfigError, Problem
from echo_queue.queue.counts import counted

WIDTH = 80
UNKNOWN = "–"
NEXT_TO_NOTHING = 0.01
PLOTTED = range(13)
"""The bounds S of the plot."""
REASONS = {
    "learner": "The learner itself is the limit: more machines would buy next to nothing.",
    "throughput": "Throughput is the limit: the machines that may be had make too few groups.",
    "staleness": "Staleness is the limit: groups take long against S. A larger S helps, or faster machines.",
    "dissemination": "Dissemination is the limit: weights travel long against S and κ. Smaller publications help.",
    "money": "Money is the limit: the budget ends before the learner is as busy as is wanted.",
}


def show(file: Path, on: date, *, as_json: bool, pools: Path | None, picture: Path | None) -> None:
    """Plans the fleet of `file`, and prints and writes what is asked for. Raises `ConfigError`."""
    if picture and find_spec("matplotlib") is None:
        raise ConfigError(Problem("--plot", "needs matplotlib", "pip install 'echo-queue[plan]'"))
    fleet = load_fleet(file, on)
    found = plan(fleet, on)
    if as_json:
        print_json(found)
    else:
        _print(fleet, found)
    if pools:
        _write(pools, orjson.dumps(pools_file(fleet, found.chosen), option=orjson.OPT_INDENT_2))
    if picture:
        _write(picture, _picture(fleet, found).encode())


def _write(path: Path, data: bytes) -> None:
    try:
        path.write_bytes(data)
    except OSError as error:
        problem = Problem(str(path), f"cannot be written: {error.strerror}", "name a file in a folder that is there")
        raise ConfigError(problem) from None


def _picture(fleet: Fleet, found: Plan) -> str:
    from echo_queue.reporting import plots

    baselines = {f"centralised {one.kind}": one.usd_per_update for one in found.baselines}
    return plots.standalone(plots.cost_by_bound(costs_by_bound(fleet, PLOTTED), baselines, fleet.run.s))


def _print(fleet: Fleet, found: Plan) -> None:
    console = Console(highlight=False, width=WIDTH)
    console.print(f"[bold]{found.fleet}[/], on {found.on}. Figures are those of the bounds, unless simulated.\n")
    console.print(_pools_table(found))
    for sentence in _sentences(fleet, found):
        console.print(sentence)
    for sentence in (*_simulated(found), *_cheaper(found)):
        console.print(sentence)
    console.print("\n[bold]What an update costs[/]")
    console.print(_comparison(found))
    if not all(one.reached for one in (found.chosen, *found.other_bounds, *found.other_ways)):
        console.print(
            f"[dim]! The learner is busy for less than the {found.wanted_utilisation:.0%} that are wanted.[/]"
        )
    if any(outcome.s in range(1, SIMULATED_UP_TO + 1) for outcome in (found.chosen, *found.other_bounds)):
        console.print(f"[dim]At S = 1 to {SIMULATED_UP_TO} the bounds are only a hint (docs/capacity.md).[/]")
    console.print("\n[bold]Assumed, and what an update costs with half and with twice of it[/]")
    console.print(_assumptions(found))
    shown = [one for one in found.sensitivities if _moves(found, one)]
    if any(None in (one.usd_per_update_at_half, one.usd_per_update_at_double) for one in shown):
        console.print(f"[dim]{UNKNOWN} With such a value nothing can be planned.[/]")
    if steady := [one.key for one in found.sensitivities if not _moves(found, one)]:
        console.print(f"[dim]These change it by less than {NEXT_TO_NOTHING:.0%}: {', '.join(steady)}.[/]")
    console.print("[dim]--json names every number with its source, the measured ones among them.[/]")


def _pools_table(found: Plan) -> Table:
    table = _table("pool", "rent", "of", "$/h", "$/1000 groups", "useful", "T_bcast", "group", "price")
    for one in found.pools:
        marks = "old" if one.old else ""
        row = (
            one.name,
            str(one.machines),
            str(one.max_machines),
            f"{one.usd_per_hour:.2f}",
            ("~" if one.assumed else "") + _usd(one.usd_per_thousand_groups),
            f"{one.useful_share:.1%}",
            _seconds(one.t_bcast_s),
            _seconds(one.group_s),
            f"{one.age_days} d {marks}".rstrip(),
        )
        table.add_row(*row, style="" if one.machines else "dim")
    return table


def _sentences(fleet: Fleet, found: Plan) -> Iterator[str]:
    chosen = found.chosen
    if any(one.assumed for one in found.pools):
        yield "[dim]~ rests on numbers of the pool that are assumed.[/]"
    yield f"[dim]T_bcast is that of a first worker; {TAIL:.0%} of groups take no longer than 'group'.[/]"
    for name, reason in found.left_out.items():
        yield f"[yellow]{name} is left out: {reason}.[/]"
    if found.old_prices:
        yield f"[yellow]Older than {fleet.prices.oldest_days} days: {', '.join(found.old_prices)}.[/]"
    if outside := elsewhere(fleet, chosen):
        yield f"[dim]Not in a cloud that Terraform's module knows: {', '.join(outside)}.[/]"
    yield ""
    kept = "" if chosen.reached else f", and not {found.wanted_utilisation:.0%} as is wanted"
    setting = f"With S = {chosen.s} and κ = {chosen.kappa}"
    yield f"{setting} the learner is busy for {chosen.utilisation:.1%} of its time{kept}."
    yield REASONS[chosen.binds]
    if chosen.usd_per_update is not None:
        spread = f"{_usd(chosen.usd_per_update)} $ an update, {_usd(chosen.usd_per_million_tokens)} $ a million tokens"
        whole = f", {chosen.usd_per_run:,.0f} $ the run" if chosen.usd_per_run else ""
        yield f"{chosen.usd_per_hour:,.2f} $/h, of which the pools {chosen.pools_usd_per_hour:,.2f}: {spread}{whole}."
        yield (
            f"Supply {chosen.supply:.2f} of what the learner takes; at least {chosen.late_share:.1%} of "
            f"groups are generated again; worst lag {chosen.worst_lag} updates, if the learner never waited."
        )


def _simulated(found: Plan) -> Iterator[str]:
    if one := found.simulated:
        busy = f"In a simulation of {one.updates} updates it is busy for {one.utilisation:.1%} of its time"
        lag = f"the mean lag is {one.mean_lag:.1f}, the worst {one.worst_lag}"
        yield f"{busy}, and an update costs {_usd(one.usd_per_update)} $; {lag}; {one.stale_share:.1%} come too late."


def _cheaper(found: Plan) -> Iterator[str]:
    """Yields what the wanted utilisation costs, if an update is cheaper with a learner that waits more."""
    less, now = found.cheaper, found.chosen.usd_per_update
    if less and less.usd_per_update and now and less.usd_per_update < now * (1 - NEXT_TO_NOTHING):
        cost = f"An update would cost {_usd(less.usd_per_update)} $ with the learner busy for {less.utilisation:.1%}"
        yield f"{cost} ({counted(sum(less.machines.values()), 'machine')})."


def _comparison(found: Plan) -> Table:
    table = _table("", "κ", "rent", "busy", "$/h", "$/update", "$/Mtok", "limit", left=("limit",))
    chosen = found.chosen
    for one in sorted((*found.other_bounds, chosen), key=lambda one: one.s):
        _add_outcome(table, f"S = {one.s}", one, bold=one is chosen)
    for one in (chosen, *found.other_ways):
        _add_outcome(table, way_name(one.form, one.peers), one, bold=one is chosen)
    for base in found.baselines:
        table.add_row(
            f"one site, {base.kind}",
            "",
            f"{base.generating_gpus} GPU",
            f"{base.utilisation:.1%}",
            f"{base.usd_per_hour:,.2f}",
            _usd(base.usd_per_update),
            _usd(base.usd_per_million_tokens),
            "" if base.saving is None else f"plan {-base.saving:+.1%}",
        )
    return table


def _add_outcome(table: Table, name: str, one: PlannedSet, *, bold: bool) -> None:
    table.add_row(
        name,
        str(one.kappa),
        str(sum(one.machines.values())),
        f"{one.utilisation:.1%}" + ("" if one.reached else "!"),
        f"{one.usd_per_hour:,.2f}",
        _usd(one.usd_per_update),
        _usd(one.usd_per_million_tokens),
        one.binds,
        style="bold" if bold else "",
    )


def _moves(found: Plan, one: Sensitivity) -> bool:
    """Returns whether half or twice of the number changes what an update costs by more than `NEXT_TO_NOTHING`."""
    now = found.chosen.usd_per_update
    costs = (one.usd_per_update_at_half, one.usd_per_update_at_double)
    return now is None or any(cost is None or abs(cost / now - 1) > NEXT_TO_NOTHING for cost in costs)


def _assumptions(found: Plan) -> Table:
    table = _table("", "value", "half", "twice", folded="")
    values = {one.key: one for one in found.inputs}
    for one in filter(lambda one: _moves(found, one), found.sensitivities):
        assumed = values[one.key]
        half, double = _usd(one.usd_per_update_at_half), _usd(one.usd_per_update_at_double)
        said = Padding(Text(assumed.said, style="dim"), (0, 0, 0, 2))
        table.add_row(Group(one.key, said), f"{assumed.value:g}", half, double)
    return table


def _usd(amount: float | None) -> str:
    """Formats money with cents, or with three digits where cents say too little."""
    if amount is None:
        return UNKNOWN
    return f"{amount:,.2f}" if amount >= 1 else f"{amount:#.3g}"


def _table(first: str, *columns: str, left: Sequence[str] = (), folded: str | None = None) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in (first, *columns):
        side: Literal["left", "right"] = "left" if column in (first, *left) else "right"
        table.add_column(column, justify=side, no_wrap=column != folded)
    return table


def _seconds(seconds: float) -> str:
    return f"{seconds:,.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
