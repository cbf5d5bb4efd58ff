"""Pictures about the bound S: the lags that came of it, and what an update costs at each."""

import functools
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator, PercentFormatter

from echo_queue.reporting.plots.picture import AMBER, BLUE, GREEN, INK, RED, VIOLET, Size, plot

WIDE: Size = (6.2, 3.1)


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
