"""The report's plots, as inline SVG that follows the page's light and dark colours.

Each function takes the run's updates and returns one `<svg>` element. Of a run with more than `MOST_POINTS` updates it
draws so many, evenly spread, so that neither the page nor its making grows with the run. Colours are drawn as
placeholders (`INK` …) and then replaced by CSS variables, which matplotlib cannot write.
"""

import functools
import hashlib
import io
import math
import re
from collections.abc import Callable, Mapping, Sequence
from importlib.resources import files
from itertools import pairwise
from typing import Any, Concatenate, ParamSpec

import matplotlib as mpl
import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator, PercentFormatter

from echo_queue.queue import Audit
from echo_queue.reporting.metrics import UpdateMetrics, began_s

Floats = npt.NDArray[np.float64]
Places = npt.NDArray[np.int64]
Size = tuple[float, float]
Line = tuple[str, Sequence[float] | Floats, str]
"""Its name, its values and its colour."""
P = ParamSpec("P")

INK, FAINT, BLUE, GREEN, AMBER, RED, VIOLET = (f"#0101{code:02x}" for code in range(1, 8))
VARIABLES = {INK: "ink", FAINT: "line", BLUE: "blue", GREEN: "green", AMBER: "amber", RED: "red", VIOLET: "violet"}
MOST_POINTS = 1_000
"""More than a picture of this size can show apart."""
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
ONE_ROW = 5
"""So many names fit into one row above a picture."""

SIZE: Size = (4.8, 2.65)
"""A picture of the page. It is small, so that its text can be read where a telephone shows it narrower still."""
WIDE: Size = (6.2, 3.1)

STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "echo-queue",
    "font.family": "sans-serif",
    "font.size": 10,
    "text.color": INK,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": FAINT,
    "grid.linewidth": 0.6,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "xtick.major.pad": 8,  # the labels of both axes at the origin do not touch
    "legend.frameon": False,
    "legend.fontsize": 9,
}


def plot(draw: Callable[Concatenate[Axes, P], None], size: Size = SIZE) -> Callable[P, str]:
    """Decorates a function that draws on axes, so that it returns the picture as SVG. `size`: in inches."""

    @functools.wraps(draw)
    def picture(*args: P.args, **kwargs: P.kwargs) -> str:
        with mpl.rc_context(STYLE):
            figure = Figure(figsize=size, layout="constrained")
            draw(figure.subplots(), *args, **kwargs)
            return _svg(figure)

    return picture


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
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _short(value)))
    _trend(axes, x, rewards, BLUE, pauses)
    axes.set_ylabel("reward")
    if rewards.min() >= 0 and rewards.max() <= 1:
        axes.set_ylim(0, 1)
    axes.set_xlim(left=0)


@plot
def reward_spread(axes: Axes, updates: Sequence[UpdateMetrics]) -> None:
    """Plots the standard deviation of the rewards of each update's samples, and its running mean."""
    _by_version(axes, updates, [update.reward_std for update in updates], BLUE, from_zero=True)
    axes.set_ylabel("standard deviation")


@plot
def lag_histogram(axes: Axes, lags: Mapping[int, int], s: int) -> None:
    """Plots the share of the trained groups at each lag, 0 … S, with the bound marked."""
    ticks = np.arange(0, max(s, *lags, 0) + 1)
    total = max(sum(lags.values()), 1)
    shares = [lags.get(int(lag), 0) / total for lag in ticks]
    bars = axes.bar(ticks, shares, width=0.72, color=BLUE)
    named = [("<1%" if round(100 * share) == 0 else f"{share:.0%}") if share else "" for share in shares]
    axes.bar_label(bars, named, padding=2, fontsize=9)
    axes.axvline(s + 0.5, color=RED, linewidth=1.4, linestyle=(0, (4, 3)))
    axes.annotate(
        f"S = {s}", (s + 0.5, 1.0), (-4, -2), xycoords=("data", "axes fraction"), textcoords="offset points",
        color=RED, ha="right", va="top",
    )  # fmt: skip
    axes.set_xlabel("lag at the update, in updates")
    axes.set_ylabel("groups trained")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=12))
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axes.set_xlim(-0.6, ticks[-1] + 0.75)
    axes.set_ylim(0, max(shares) * 1.18)


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
    _legend_above(axes)


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
    shown = _shown(updates)
    x = _over_time(axes, updates)[shown]
    series = places([updates[place] for place in shown], audit)
    cuts = _after_pauses(shown, _pauses(updates))
    x = np.insert(x, cuts, x[cuts])
    held = {name: np.insert(one, cuts, one[cuts - 1]) for name, one in series.items()}  # until the next learner comes
    if audit:
        edge = x[-1] * (1 + LAST_SHARE)
        x = np.concatenate([x, [x[-1], edge]])
        held = {name: np.append(one, one[-1]) for name, one in held.items()}
    axes.stackplot(x, *held.values(), colors=[PLACES[name] for name in held], labels=list(held), linewidth=0)
    axes.set_ylabel("groups")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _short(value)))
    axes.set_xlim(0, x[-1])
    axes.set_ylim(0, max(map(sum, zip(*series.values(), strict=True)), default=0) or 1)
    _legend_above(axes)


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
    trained = _running_mean(tokens, reach)
    busy = _running_mean(np.array([max(update.train_s, 1e-6) for update in updates]), reach)
    whole = _running_mean(np.array([max(update.time_s - began_s(update), 1e-6) for update in updates]), reach)
    lines = [("while training", trained / busy, BLUE), ("with waiting and saving", trained / whole, GREEN)]
    _lines(axes, updates, lines)
    axes.set_ylabel("tokens per second")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _short(value)))


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
    shown, x = _shown(updates), _over_time(axes, updates)
    store = ever_read([update.store_bytes for update in updates])
    peers = ever_read([update.peer_bytes for update in updates])
    names = ("from the store", "from other workers")
    axes.stackplot(x[shown], store[shown], peers[shown], colors=[BLUE, GREEN], labels=names, linewidth=0)
    axes.set_ylabel("bytes")
    axes.set_ylim(bottom=0)
    _legend_above(axes)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _short(value)))


def ever_read(read: Sequence[int]) -> Floats:
    """Returns how many bytes all workers had read after each update. `read`: how many those had that lived then.

    The sum of the living falls where a worker ends. What it read since the update before is not known.
    """
    total: Floats = np.maximum(np.diff(np.array(read, dtype=float), prepend=0.0), 0.0).cumsum()
    return total


@plot
def learning_rate(axes: Axes, updates: Sequence[UpdateMetrics]) -> None:
    """Plots the learning rate of each update."""
    updates = [updates[place] for place in _shown(updates)]
    rates = [update.lr for update in updates]
    axes.plot([update.version for update in updates], rates, color=BLUE, linewidth=2)
    _versions(axes)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.3g}"))
    axes.set_ylabel("learning rate")
    axes.set_ylim(0, 1.1 * max(rates) or 1)


@plot
def kl(axes: Axes, updates: Sequence[UpdateMetrics]) -> None:
    """Plots the KL divergence of the policy from the base model, in nats per token, and its running mean."""
    _by_version(axes, updates, [update.kl_reference for update in updates], BLUE)
    axes.set_ylabel("nats per token")


@plot
def entropy(axes: Axes, updates: Sequence[UpdateMetrics]) -> None:
    """Plots the entropy of the policy, in nats per token."""
    _by_version(axes, updates, [update.entropy for update in updates], VIOLET, from_zero=True)
    axes.set_ylabel("nats per token")


@plot
def off_policy(axes: Axes, updates: Sequence[UpdateMetrics]) -> None:
    """Plots how far the batches were off-policy: the behaviour KL, and the share of the tokens that were clipped."""
    updates = [updates[place] for place in _shown(updates)]
    x = [update.version for update in updates]
    axes.plot(x, [update.kl_behaviour for update in updates], color=AMBER, linewidth=1.6, label="behaviour KL")
    axes.plot(x, [update.clip_fraction for update in updates], color=BLUE, linewidth=1.6, label="clipped share")
    _versions(axes)
    _legend_above(axes)


@plot
def loss(axes: Axes, updates: Sequence[UpdateMetrics]) -> None:
    """Plots the loss of each update and its running mean."""
    _by_version(axes, updates, [update.loss for update in updates], RED)
    axes.set_ylabel("loss")


@plot
def grad_norm(axes: Axes, updates: Sequence[UpdateMetrics]) -> None:
    """Plots the norm of each update's gradient, before it is clipped, and its running mean."""
    _by_version(axes, updates, [update.grad_norm for update in updates], AMBER, from_zero=True)
    axes.set_ylabel("gradient norm")


@plot
def lengths(axes: Axes, updates: Sequence[UpdateMetrics]) -> None:
    """Plots the mean length of each update's answers and its running mean, in tokens."""
    _by_version(axes, updates, [update.length_mean for update in updates], GREEN, from_zero=True)
    axes.set_ylabel("tokens")


@plot
def share(axes: Axes, updates: Sequence[UpdateMetrics], parts: Sequence[float]) -> None:
    """Plots a share of each update, 0 … 1, and its running mean. The axis ends where the shares do."""
    _by_version(axes, updates, parts, AMBER, from_zero=True)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=None))


@functools.partial(plot, size=WIDE)
def cost_by_bound(
    axes: Axes, lines: Mapping[str, Sequence[tuple[int, float]]], levels: Mapping[str, float], s: int
) -> None:
    """Plots what an update costs in USD at each bound S, a line for each name, and levels that no bound moves."""
    styles = ((AMBER, 4.0), (VIOLET, 1.8), (GREEN, 4.0), (BLUE, 1.8))  # a line may lie on the one before it
    for (name, points), (colour, width) in zip(lines.items(), styles, strict=True):
        bounds, costs = [bound for bound, _ in points], [cost for _, cost in points]
        axes.plot(bounds, costs, color=colour, linewidth=width, marker="o", markersize=2 + width, label=name)
    for (name, cost), colour in zip(levels.items(), (RED, INK), strict=False):
        axes.axhline(cost, color=colour, linewidth=1.4, linestyle=(0, (4, 3)), label=name)
    axes.axvline(s, color=INK, linewidth=0.8, alpha=0.4)
    axes.set_xlabel("S, in updates")
    axes.set_ylabel("USD per update")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=14))
    axes.set_ylim(bottom=0)
    axes.legend(ncols=3, loc="lower left", bbox_to_anchor=(-0.02, 1.0), handlelength=1.4, columnspacing=1.4)


def standalone(picture: str) -> str:
    """Returns a picture that needs no page around it: it has the report's colours, light or dark."""
    page = (files("echo_queue.reporting") / "report.html").read_text(encoding="utf-8")
    colours = page[page.index(":root") : page.index("* {")]
    return picture.replace(">", f"><style>{colours}</style>", 1)


def _shown(updates: Sequence[UpdateMetrics] | Floats) -> Places:
    """Returns the places of the updates that are drawn: the first, the last, and at most `MOST_POINTS` in all."""
    count = len(updates)
    places: Places = np.unique(np.linspace(0, count - 1, min(count, MOST_POINTS)).round().astype(np.int64))
    return places


def _by_version(
    axes: Axes, updates: Sequence[UpdateMetrics], values: Sequence[float], colour: str, *, from_zero: bool = False
) -> None:
    """Plots the value of each update and their running mean against the version that the update made.

    `from_zero`: the values are never negative, and the axis begins at 0.
    """
    _trend(axes, np.array([update.version for update in updates], dtype=float), np.array(values), colour)
    _versions(axes)
    if from_zero:
        axes.set_ylim(0, 1.1 * max(values) or 1)


def _versions(axes: Axes) -> None:
    """Makes whole versions the x-axis."""
    axes.set_xlabel("version")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


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


def restarts_s(updates: Sequence[UpdateMetrics]) -> list[float]:
    """Returns when each learner but the first began, in seconds since the epoch."""
    return [began_s(after) for before, after in pairwise(updates) if before.lineage != after.lineage]


def _lines(axes: Axes, updates: Sequence[UpdateMetrics], lines: Sequence[Line], drawstyle: str = "default") -> None:
    """Plots a value of each update over time, by name and colour, from 0; pauses interrupt the lines."""
    x, shown = _over_time(axes, updates), _shown(updates)
    cuts = _after_pauses(shown, _pauses(updates))
    for name, values, colour in lines:
        y = np.asarray(values, dtype=float)
        axes.plot(*_cut(x[shown], y[shown], cuts), color=colour, linewidth=1.8, label=name, drawstyle=drawstyle)
    axes.set_ylim(bottom=0)
    _legend_above(axes)


def _trend(axes: Axes, x: Floats, values: Floats, colour: str, pauses: Places | None = None) -> None:
    """Plots the value of each update as a dot, and their running mean as a line, which `pauses` interrupt."""
    shown = _shown(values)
    means = _running_mean(values, max(1, len(values) // 20))
    axes.plot(x[shown], values[shown], "o", color=colour, alpha=0.25, markersize=3.5, markeredgewidth=0)
    cuts = _after_pauses(shown, np.array([], dtype=np.int64) if pauses is None else pauses)
    axes.plot(*_cut(x[shown], means[shown], cuts), color=colour, linewidth=2)


def _pauses(updates: Sequence[UpdateMetrics]) -> Places:
    """Returns the updates that came after a time without a learner."""
    ended = np.array([update.time_s for update in updates])
    began = np.array([began_s(update) for update in updates])
    least_s = max(PAUSE_S, PAUSE_SHARE * (ended[-1] - began[0]))
    places: Places = 1 + np.flatnonzero(began[1:] - ended[:-1] >= least_s)
    return places


def _after_pauses(shown: Places, pauses: Places) -> Places:
    """Returns the places, among the updates that are drawn, before which there was a pause."""
    places: Places = np.unique(np.searchsorted(shown, pauses))
    return places


def _cut(x: Floats, y: Floats, cuts: Places) -> tuple[Floats, Floats]:
    """Returns a line that is interrupted before each of the places `cuts`."""
    return np.insert(x, cuts, x[cuts]), np.insert(y, cuts, np.nan)


def _legend_above(axes: Axes) -> None:
    count = len(axes.get_legend_handles_labels()[0])
    if not count:
        return
    columns = count if count <= ONE_ROW else -(-count // 2)
    axes.legend(ncols=columns, loc="lower left", bbox_to_anchor=(-0.02, 1.0), handlelength=1, columnspacing=1.4)


def _svg(figure: Figure) -> str:
    """Returns the figure as an element that scales with the page and whose ids are unique on the page."""
    file = io.StringIO()
    figure.savefig(file, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = file.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r' (width|height)="[\d.]+pt"', "", text, count=2)
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    unique = hashlib.sha256(text.encode()).hexdigest()[:8]
    text = re.sub(r'id="([^"]+)"', rf'id="{unique}-\1"', text)
    text = re.sub(r'(href="#|url\(#)', rf"\g<1>{unique}-", text)
    for placeholder, name in VARIABLES.items():
        text = text.replace(placeholder, f"var(--{name})")
    return text


def _time(moments_s: Sequence[float] | Floats, start_s: float) -> tuple[Floats, str]:
    elapsed = np.asarray(moments_s, dtype=float) - start_s
    for seconds, unit in ((86_400, "days"), (3_600, "hours"), (120, "minutes")):
        if elapsed[-1] >= 2 * seconds:
            return elapsed / (60 if unit == "minutes" else seconds), unit
    return elapsed, "seconds"


def _running_mean(values: Floats, reach: int) -> Floats:
    """Returns the mean over the `reach` values before and after each value; at the ends, over a quarter as many."""
    sums = np.concatenate([[0.0], np.cumsum(values)])
    places = np.arange(len(values))
    near = np.minimum(reach, np.maximum(reach // 4, np.minimum(places, places[::-1])))
    first, last = np.maximum(places - near, 0), np.minimum(places + near + 1, len(values))
    means: Floats = (sums[last] - sums[first]) / (last - first)
    return means


def _coverage(spans: Floats, edges: Floats) -> Floats:
    """Returns the share of each interval between `edges` that the spans ([N, 2], not overlapping) cover."""

    def covered_until(moment: Floats) -> Floats:
        inside = np.clip(moment[:, None], spans[:, 0], np.maximum(spans[:, 0], spans[:, 1])) - spans[:, 0]
        total: Floats = inside.sum(axis=1)
        return total

    shares: Floats = np.clip(np.diff(covered_until(edges)) / np.diff(edges), 0, 1)
    return shares


def _short(value: float) -> str:
    for size, suffix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:g}{suffix}"
    return f"{value:g}"
