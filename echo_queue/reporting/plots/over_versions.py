"""Pictures against the version that each update made: whether training goes well, also on prompts it never trained."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator, PercentFormatter

from echo_queue.evaluation.results import EvaluationResult
from echo_queue.reporting.components import ComponentFigures
from echo_queue.reporting.metrics import UpdateMetrics
from echo_queue.reporting.plots.picture import (
    AMBER,
    BLUE,
    GREEN,
    RED,
    VARIABLES,
    VIOLET,
    Floats,
    draw_trend,
    legend_above,
    plot,
    running_mean,
    shown_of,
)

COLOURS, STYLES = (BLUE, AMBER, GREEN, VIOLET, RED), {"-": "", "--": "6 3", ":": "2 2", "-.": "7 2 2 2"}
"""They tell the lines of reward functions, and of components, apart; the dashes of a style as SVG has them."""
SHARE_REACH = 10
"""The shares of components are of so many updates before and after each, at least: one update has whole groups."""


@plot
def held_out(axes: Axes, curve: Sequence[EvaluationResult]) -> None:
    """Plots the mean rewards of an evaluation, with their intervals; a ring is the best one, a cross was given up."""
    answered = [one for one in curve if one.mean is not None]
    x = np.array([one.version.number for one in answered], dtype=float)
    means = np.array([one.mean for one in answered], dtype=float)
    low, high = (np.array([getattr(one, end) for one in answered], dtype=float) for end in ("low", "high"))
    axes.fill_between(x, low, high, color=GREEN, alpha=0.2, linewidth=0)
    axes.errorbar(
        x, means, (means - low, high - means), color=GREEN, linewidth=2, elinewidth=1, marker="o", markersize=4
    )
    if answered:
        best = int(means.argmax())
        axes.plot(x[best], means[best], "o", color=GREEN, markersize=10, markerfacecolor="none", markeredgewidth=1.4)
    given_up = [one.version.number for one in curve if one.given_up]
    axes.plot(given_up, [0.03] * len(given_up), "x", color=RED, markersize=6, transform=axes.get_xaxis_transform())
    _versions(axes)
    axes.set_ylabel("mean reward")
    if not answered or (np.nanmin([*low, *means]) >= 0 and np.nanmax([*high, *means]) <= 1):
        axes.set_ylim(0, 1)


@plot
def reward_spread(axes: Axes, updates: Sequence[UpdateMetrics]) -> None:
    """Plots the standard deviation of the rewards of each update's samples, and its running mean."""
    _by_version(axes, updates, [update.reward_std for update in updates], BLUE, from_zero=True)
    axes.set_ylabel("standard deviation")


@plot
def rewards(axes: Axes, updates: Sequence[UpdateMetrics], component: str = "") -> None:
    """Plots the mean of what each reward function gave, before its weight: all samples, or those of one component."""
    having = [update for update in updates if not component or component in update.components]
    having = [having[place] for place in shown_of(having)]
    given = [update.components[component].rewards if component else update.rewards for update in having]
    for number, name in enumerate(dict.fromkeys(name for one in given for name in one)):
        points = [(update.version, one[name]) for update, one in zip(having, given, strict=True) if name in one]
        axes.plot(*zip(*points, strict=True), **_line(number), linewidth=1.6, label=name)
    _versions(axes)
    legend_above(axes)


@plot
def component_rewards(axes: Axes, updates: Sequence[UpdateMetrics]) -> None:
    """Plots the running mean of each component's rewards, over the updates that trained some of it."""
    means = _component_trends(axes, updates, lambda figures: figures.reward_mean)
    axes.set_ylabel("reward")
    if means.min() >= 0 and means.max() <= 1:
        axes.set_ylim(0, 1)


@plot
def component_lengths(axes: Axes, updates: Sequence[UpdateMetrics]) -> None:
    """Plots the running mean of the lengths of each component's answers, in tokens."""
    means = _component_trends(axes, updates, lambda figures: figures.length_mean)
    axes.set_ylabel("tokens")
    axes.set_ylim(0, 1.1 * means.max() or 1)


@plot
def component_shares(axes: Axes, updates: Sequence[UpdateMetrics], weights: Mapping[str, float]) -> None:
    """Plots the share of each component in the groups around each update, and dotted its share by the weights."""
    shown, reach = shown_of(updates), max(SHARE_REACH, len(updates) // 20)
    x = np.array([update.version for update in updates], dtype=float)
    names = components_of(updates)
    groups = np.array([[_groups(update, name) for update in updates] for name in names], dtype=float)
    trained, largest = np.maximum(running_mean(groups.sum(axis=0), reach), 1e-9), 0.0
    for number, name in enumerate(names):
        line = _line(number)
        shares = running_mean(groups[number], reach) / trained
        largest = max(largest, shares.max())
        axes.plot(x[shown], shares[shown], **line, linewidth=2)
        if name in weights:
            weighed = weights[name] / sum(weights.values())
            largest = max(largest, weighed)
            axes.axhline(weighed, color=line["color"], alpha=0.55, linewidth=1.2, linestyle=(0, (1, 2)))
    _versions(axes)
    axes.set_ylabel("share of groups")
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axes.set_ylim(0, min(1.0, 1.15 * largest))


def components_of(updates: Sequence[UpdateMetrics]) -> list[str]:
    """Returns the names of the components of which the updates trained some, in the order in which they came."""
    return list(dict.fromkeys(name for update in updates for name in update.components))


def _groups(update: UpdateMetrics, component: str) -> int:
    return update.components[component].groups if component in update.components else 0


def _component_trends(axes: Axes, updates: Sequence[UpdateMetrics], of: Callable[[ComponentFigures], float]) -> Floats:
    """Plots the running mean of a figure of each component, and returns all these means."""
    drawn = []
    for number, name in enumerate(components_of(updates)):
        having = [update for update in updates if name in update.components]
        x = np.array([update.version for update in having], dtype=float)
        values = np.array([of(update.components[name]) for update in having], dtype=float)
        shown, means = shown_of(having), running_mean(values, max(1, len(values) // 20))
        axes.plot(x[shown], means[shown], **_line(number), linewidth=2)
        drawn.append(means)
    _versions(axes)
    return np.concatenate(drawn)


def _line(number: int) -> dict[str, Any]:
    """Returns the colour and the style of the line of this number."""
    return {"color": COLOURS[number % len(COLOURS)], "linestyle": [*STYLES][number // len(COLOURS) % len(STYLES)]}


def key(number: int) -> str:
    """Returns a short piece of a component's line as SVG, for a legend outside of the picture."""
    line = _line(number)
    colour, dashes = f"var(--{VARIABLES[line['color']]})", STYLES[line["linestyle"]]
    drawn = f'<line x1="0" x2="20" y1="3" y2="3" stroke="{colour}" stroke-width="3" stroke-dasharray="{dashes}"/>'
    return f'<svg class="key" viewBox="0 0 20 6">{drawn}</svg>'


@plot
def learning_rate(axes: Axes, updates: Sequence[UpdateMetrics]) -> None:
    """Plots the learning rate of each update."""
    updates = [updates[place] for place in shown_of(updates)]
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
    updates = [updates[place] for place in shown_of(updates)]
    x = [update.version for update in updates]
    axes.plot(x, [update.kl_behaviour for update in updates], color=AMBER, linewidth=1.6, label="behaviour KL")
    axes.plot(x, [update.clip_fraction for update in updates], color=BLUE, linewidth=1.6, label="clipped share")
    _versions(axes)
    legend_above(axes)


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


def _by_version(
    axes: Axes, updates: Sequence[UpdateMetrics], values: Sequence[float], colour: str, *, from_zero: bool = False
) -> None:
    """Plots the value of each update and their running mean against the version that the update made.

    `from_zero`: the values are never negative, and the axis begins at 0.
    """
    draw_trend(axes, np.array([update.version for update in updates], dtype=float), np.array(values), colour)
    _versions(axes)
    if from_zero:
        axes.set_ylim(0, 1.1 * max(values) or 1)


def _versions(axes: Axes) -> None:
    """Makes whole versions the x-axis."""
    axes.set_xlabel("version")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
