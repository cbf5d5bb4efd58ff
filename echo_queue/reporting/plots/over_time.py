"""Pictures against the time of the run: rewards, the learner, the places of groups, workers and weights.

A time without a learner interrupts their lines, and a dashed line marks where another learner began.
"""

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator, PercentFormatter

from echo_queue.queue import Audit
from echo_queue.reporting.metrics import UpdateMetrics, began_s
from echo_queue.reporting.plots.picture import (
    AMBER,
    BLUE,
    FAINT,
    GREEN,
    INK,
    RED,
    VIOLET,
    Floats,
    Places,
    after_pauses,
    cut_line,
    draw_trend,
    legend_above,
    plot,
    running_mean,
    short,
    shown_of,
)

Line = tuple[str, Sequence[float] | Floats, str]
"""Its name, its values and its colour."""
PAUSE_S, PAUSE_SHARE = 10.0, 1 / 50
"""A time without a learner is a pause, across which no line is drawn, if it is as long as this, and as this share of
the run."""
PLACES = {
    "trained": (GREEN, 1.0),
    "in hand": (GREEN, 0.45),
    "ready": (AMBER, 1.0),
    "retry": (VIOLET, 1.0),
    "tasks": (BLUE, 1.0),
    "backlog": (FAINT, 1.0),
    "dead": (RED, 1.0),
}
"""The places of a group, from the bottom of their picture to its top, and their colours."""
LAST_SHARE = 0.03
"""The last place of every group, which no update recorded, is drawn with this share of the width."""


@plot
def reward(axes: Axes, updates: Sequence[UpdateMetrics], *, by: str) -> None:
    """Plots the mean reward of each update and its running mean, against `by`: "time" or "samples"."""
    rewards = np.array([update.reward_mean for update in updates])
    pauses = _pauses(updates)
    if by == "time":
        x = _over_time(axes, updates)
    else:
        pauses = pauses[:0]
        x = np.cumsum([update.samples for update in updates]).astype(float)
        axes.set_xlabel("samples trained")
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))
    draw_trend(axes, x, rewards, BLUE, pauses)
    axes.set_ylabel("reward")
    if rewards.min() >= 0 and rewards.max() <= 1:
        axes.set_ylim(0, 1)
    axes.set_xlim(left=0)


@plot
def learner_time(axes: Axes, updates: Sequence[UpdateMetrics]) -> None:
    """Plots the shares of wall time that the learner spent training, saving and waiting."""
    edges, shares = busy_shares(updates)
    x, _ = _time(edges, edges[0])
    _over_time(axes, updates)
    lower = np.zeros(len(edges) - 1)
    for name, colour in (("training", GREEN), ("saving", VIOLET), ("waiting", AMBER)):
        axes.stairs(lower + shares[name], x, baseline=lower, fill=True, color=colour, label=name, linewidth=0)
        lower = lower + shares[name]
    axes.set_ylabel("share of time")
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axes.set_ylim(0, 1)
    axes.set_xlim(0, x[-1])
    legend_above(axes)


def busy_shares(updates: Sequence[UpdateMetrics], most: int = 100) -> tuple[Floats, dict[str, Floats]]:
    """Returns the edges (seconds since the epoch) of equal intervals, and the share of each by activity.

    An update is waiting, then training, then saving. Shares that add up to less than 1 mean that no learner ran.
    """
    start, end = began_s(updates[0]), updates[-1].time_s
    edges = np.linspace(start, max(end, start + 1e-3), min(most, 2 * len(updates)) + 1)
    spans: dict[str, list[tuple[float, float]]] = {"waiting": [], "training": [], "saving": []}
    for update in updates:
        waited = began_s(update) + update.wait_s
        spans["waiting"].append((began_s(update), waited))
        spans["training"].append((waited, waited + update.train_s))
        spans["saving"].append((waited + update.train_s, update.time_s))
    return edges, {name: _coverage(np.array(pairs), edges) for name, pairs in spans.items()}


@plot
def depths(axes: Axes, updates: Sequence[UpdateMetrics], audit: Audit | None) -> None:
    """Plots where every submitted group was after each update, which is the identity as a picture.

    What the queue says now, after the last commit, is the right edge, if it is known.
    """
    shown = shown_of(updates)
    x = _over_time(axes, updates)[shown]
    series = places([updates[place] for place in shown], audit)
    cuts = after_pauses(shown, _pauses(updates))
    x = np.insert(x, cuts, x[cuts])
    held = {name: np.insert(one, cuts, one[cuts - 1]) for name, one in series.items()}  # until the next learner comes
    if audit:
        edge = x[-1] * (1 + LAST_SHARE)
        x = np.concatenate([x, [x[-1], edge]])
        held = {name: np.append(one, one[-1]) for name, one in held.items()}
    axes.stackplot(x, *held.values(), colors=[PLACES[name] for name in held], labels=list(held), linewidth=0)
    axes.set_ylabel("groups")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))
    axes.set_xlim(0, x[-1])
    axes.set_ylim(0, max(map(sum, zip(*series.values(), strict=True)), default=0) or 1)
    legend_above(axes)


def places(updates: Sequence[UpdateMetrics], audit: Audit | None) -> dict[str, Floats]:
    """Returns how many groups were at each of the `PLACES` after each update, and at last by the audit, if any.

    A group in replay is ready or in hand. Places where no group ever was are left out.
    """
    depths = [update.depths for update in updates]
    if audit:
        names = ("trained", "replay", "ready", "tasks", "backlog", "dead")  # its tasks are those of retry as well
        depths.append({name: getattr(audit, name) for name in names})
    depths = [found | {"in hand": found.get("replay", 0) - found.get("ready", 0)} for found in depths]
    series = {name: np.array([found.get(name, 0) for found in depths], dtype=float) for name in PLACES}
    return {name: one for name, one in series.items() if one.any()}


@plot
def in_flight(axes: Axes, updates: Sequence[UpdateMetrics]) -> None:
    """Plots the groups between admission and training, and the number of them that are ready for the learner."""
    colours = {"tasks": BLUE, "retry": VIOLET, "ready": AMBER}
    series = {name: [update.depths.get(name, 0) for update in updates] for name in colours}
    if not any(series["retry"]):
        del series["retry"]
    _lines(axes, updates, [(name, groups, colours[name]) for name, groups in series.items()])
    axes.set_ylabel("groups")


@plot
def speed(axes: Axes, updates: Sequence[UpdateMetrics]) -> None:
    """Plots the tokens trained per second of each update's whole time, and of its training time alone."""
    reach = max(1, len(updates) // 20)
    tokens = np.array([update.tokens for update in updates], dtype=float)
    # Sums before ratios: an update that taught nothing takes no time.
    trained = running_mean(tokens, reach)
    busy = running_mean(np.array([max(update.train_s, 1e-6) for update in updates]), reach)
    whole = running_mean(np.array([max(update.time_s - began_s(update), 1e-6) for update in updates]), reach)
    lines = [("while training", trained / busy, BLUE), ("with waiting and saving", trained / whole, GREEN)]
    _lines(axes, updates, lines)
    axes.set_ylabel("tokens per second")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))


@plot
def workers(axes: Axes, updates: Sequence[UpdateMetrics]) -> None:
    """Plots how many workers lived after each update that says so."""
    alive = [math.nan if update.workers is None else update.workers for update in updates]
    _lines(axes, updates, [("", alive, BLUE)], drawstyle="steps-pre")
    axes.set_ylabel("workers")
    axes.set_ylim(0, 1.1 * float(np.nanmax(alive)) or 1)
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))


@plot
def weights_s(axes: Axes, updates: Sequence[UpdateMetrics]) -> None:
    """Plots how long weights took to be everywhere, and the longest pause of an engine to load them."""
    everywhere = [update.t_bcast_s or math.nan for update in updates]
    pauses = [update.pause_s or math.nan for update in updates]
    lines = [("until all workers serve them", everywhere, BLUE), ("pause of a worker", pauses, AMBER)]
    measured = [line for line in lines if not np.isnan(line[1]).all()]
    _lines(axes, updates, measured)
    seconds = [one for _, values, _ in measured for one in values]
    axes.set_yscale("log")
    axes.set_ylim(np.nanmin(seconds) / 1.5, np.nanmax(seconds) * 1.5)
    decades = math.log10(np.nanmax(seconds) / np.nanmin(seconds))
    axes.yaxis.set_major_locator(LogLocator(subs=(1,) if decades > 1 else (1, 2, 5)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_ylabel("seconds")


@plot
def weights_read(axes: Axes, updates: Sequence[UpdateMetrics]) -> None:
    """Plots how many weight bytes all workers have read, from the store and from one another."""
    shown, x = shown_of(updates), _over_time(axes, updates)
    store = ever_read([update.store_bytes for update in updates])
    peers = ever_read([update.peer_bytes for update in updates])
    names = ("from the store", "from other workers")
    axes.stackplot(x[shown], store[shown], peers[shown], colors=[BLUE, GREEN], labels=names, linewidth=0)
    axes.set_ylabel("bytes")
    axes.set_ylim(bottom=0)
    legend_above(axes)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))


def ever_read(read: Sequence[int]) -> Floats:
    """Returns how many bytes all workers had read after each update. `read`: how many those had that lived then.

    The sum of the living falls where a worker ends. What it read since the update before is not known.
    """
    total: Floats = np.maximum(np.diff(np.array(read, dtype=float), prepend=0.0), 0.0).cumsum()
    return total


def restarts_s(updates: Sequence[UpdateMetrics]) -> list[float]:
    """Returns when each learner but the first began, in seconds since the epoch."""
    return [began_s(after) for before, after in pairwise(updates) if before.lineage != after.lineage]


def _over_time(axes: Axes, updates: Sequence[UpdateMetrics]) -> Floats:
    """Makes time the x-axis, marks where another learner began, and returns where each update ended."""
    start_s = began_s(updates[0])
    x, unit = _time([update.time_s for update in updates], start_s)
    axes.set_xlabel(f"{unit} since the start")
    per_s = x[-1] / max(updates[-1].time_s - start_s, 1e-9)
    for began in restarts_s(updates):
        axes.axvline((began - start_s) * per_s, color=INK, alpha=0.45, linewidth=0.9, linestyle=(0, (3, 3)))
    axes.set_xlim(0, x[-1])
    return x


def _lines(axes: Axes, updates: Sequence[UpdateMetrics], lines: Sequence[Line], drawstyle: str = "default") -> None:
    """Plots a value of each update over time, by name and colour, from 0; pauses interrupt the lines."""
    x, shown = _over_time(axes, updates), shown_of(updates)
    cuts = after_pauses(shown, _pauses(updates))
    for name, values, colour in lines:
        y = np.asarray(values, dtype=float)
        axes.plot(*cut_line(x[shown], y[shown], cuts), color=colour, linewidth=1.8, label=name, drawstyle=drawstyle)
    axes.set_ylim(bottom=0)
    legend_above(axes)


def _pauses(updates: Sequence[UpdateMetrics]) -> Places:
    """Returns the updates that came after a time without a learner."""
    ended = np.array([update.time_s for update in updates])
    began = np.array([began_s(update) for update in updates])
    least_s = max(PAUSE_S, PAUSE_SHARE * (ended[-1] - began[0]))
    places: Places = 1 + np.flatnonzero(began[1:] - ended[:-1] >= least_s)
    return places


def _time(moments_s: Sequence[float] | Floats, start_s: float) -> tuple[Floats, str]:
    elapsed = np.asarray(moments_s, dtype=float) - start_s
    for seconds, unit in ((86_400, "days"), (3_600, "hours"), (120, "minutes")):
        if elapsed[-1] >= 2 * seconds:
            return elapsed / (60 if unit == "minutes" else seconds), unit
    return elapsed, "seconds"


def _coverage(spans: Floats, edges: Floats) -> Floats:
    """Returns the share of each interval between `edges` that the spans ([N, 2], not overlapping) cover."""

    def covered_until(moment: Floats) -> Floats:
        inside = np.clip(moment[:, None], spans[:, 0], np.maximum(spans[:, 0], spans[:, 1])) - spans[:, 0]
        total: Floats = inside.sum(axis=1)
        return total

    shares: Floats = np.clip(np.diff(covered_until(edges)) / np.diff(edges), 0, 1)
    return shares
