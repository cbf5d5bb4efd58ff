"""Pictures against the version that each update made: whether training goes well, also on prompts it never trained."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator, PercentFormatter

from echo_queue.evaluation.results import EvaluationResult
from echo_queue.reporting.metrics import UpdateMetrics
from echo_queue.reporting.plots.picture import AMBER, BLUE, GREEN, RED, VIOLET, draw_trend, legend_above, plot, shown_of

COLOURS, STYLES = (BLUE, AMBER, GREEN, VIOLET, RED), ("-", "--", ":", "-.")
"""They tell the lines of reward functions apart."""


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
def rewards(axes: Axes, updates: Sequence[UpdateMetrics]) -> None:
    """Plots the mean of what each reward function gave, before its weight."""
    updates = [updates[place] for place in shown_of(updates)]
    for number, name in enumerate(dict.fromkeys(name for update in updates for name in update.rewards)):
        having = [update for update in updates if name in update.rewards]
        colour, style = COLOURS[number % len(COLOURS)], STYLES[number // len(COLOURS) % len(STYLES)]
        means = [update.rewards[name] for update in having]
        axes.plot([one.version for one in having], means, style, color=colour, linewidth=1.6, label=name)
    _versions(axes)
    legend_above(axes)


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
