"""The figures of a mixture's components: of one update, and summed up over several.

What an update's record says of all samples and what it says of one component's have the same names (`Figures`), so that
means and warnings of a run and of a component are computed alike.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from statistics import fmean
from typing import Protocol

LEAST_AVERAGED, MOST_AVERAGED = 5, 10
"""The rewards of a run's ends are means of a tenth of its updates, within these bounds, and of half of them at most."""
CUT_SHARE = 0.95
"""The share of an update's samples at which nearly all were cut off."""


class Figures(Protocol):
    """The figures of the samples of an update, all of them or those of one component."""

    @property
    def groups(self) -> int: ...
    @property
    def samples(self) -> int: ...
    @property
    def reward_mean(self) -> float: ...
    @property
    def rewards(self) -> dict[str, float]: ...
    @property
    def zero_variance_groups(self) -> int: ...
    @property
    def truncated_fraction(self) -> float: ...


@dataclass(frozen=True)
class ComponentFigures:
    """The samples of one component in an update, by the names that the same figures of all samples have there."""

    groups: int
    samples: int
    tokens: int
    reward_mean: float
    length_mean: float
    """Mean length of the samples, in tokens."""
    truncated_fraction: float
    """Share of the samples that were cut off at their largest length."""
    zero_variance_groups: int
    rewards: dict[str, float] = field(default_factory=dict)
    """Mean of what each reward function gave, before its weight."""


@dataclass(frozen=True)
class ComponentSummary:
    """The figures of a component over several updates. Its own updates are those that trained a group of it."""

    updates: int
    groups: int
    share: float
    """Its share of all groups that were trained."""
    samples: int
    tokens: int
    length_mean: float
    """Mean length of the samples, in tokens."""
    truncated_fraction: float
    zero_variance_groups: int
    reward_first: float
    reward_last: float
    """Mean rewards of the samples of the first and of the last `reward_updates` of its updates."""
    rewards_last: dict[str, float]
    """Mean of what each reward function gave those last samples, before its weight."""
    reward_updates: int
    """Over how many of its updates the rewards are averaged: a tenth of them, between five and ten, at most half."""
    flat_groups: int
    """The number of its last groups, in updates in a row, in which the samples of every prompt had equal rewards."""
    cut_groups: int
    """The number of its last groups, in updates in a row, of whose samples at least `CUT_SHARE` were cut off."""

    @property
    def figure(self) -> str:
        """Its rewards at both ends and its share, for a person."""
        return f"{self.reward_first:.2f} → {self.reward_last:.2f}, {self.share:.1%} of the groups"


def summaries(updates: Sequence[Mapping[str, ComponentFigures]]) -> dict[str, ComponentSummary]:
    """Returns the summary of each component, by name, in the order in which they came. Updates are in their order."""
    having = dict[str, list[ComponentFigures]]()
    for update in updates:
        for name, figures in update.items():
            having.setdefault(name, []).append(figures)
    trained = sum(one.groups for found in having.values() for one in found)
    return {name: _summary(found, trained) for name, found in having.items()}


def _summary(updates: Sequence[ComponentFigures], trained: int) -> ComponentSummary:
    averaged = averaged_at_ends(len(updates))
    first, last = updates[:averaged], updates[len(updates) - averaged :]
    groups, samples = sum(one.groups for one in updates), sum(one.samples for one in updates)
    tokens = sum(one.tokens for one in updates)
    return ComponentSummary(
        updates=len(updates),
        groups=groups,
        share=groups / trained,
        samples=samples,
        tokens=tokens,
        length_mean=tokens / samples,
        truncated_fraction=sum(one.truncated_fraction * one.samples for one in updates) / samples,
        zero_variance_groups=sum(one.zero_variance_groups for one in updates),
        reward_first=mean_reward(first),
        reward_last=mean_reward(last),
        rewards_last=mean_rewards(last),
        reward_updates=averaged,
        flat_groups=_groups(takewhile(is_flat, reversed(updates))),
        cut_groups=_groups(takewhile(is_cut, reversed(updates))),
    )


def _groups(updates: Iterable[Figures]) -> int:
    return sum(update.groups for update in updates)


def averaged_at_ends(updates: int) -> int:
    """Returns over how many of so many updates the rewards of both ends are averaged."""
    return min(MOST_AVERAGED, max(updates // 10, min(LEAST_AVERAGED, (updates + 1) // 2)))


def mean_reward(updates: Sequence[Figures]) -> float:
    """Returns the mean reward of the updates' samples: a last update of one prompt weighs no more than that prompt."""
    samples = sum(update.samples for update in updates)
    return sum(update.reward_mean * update.samples for update in updates) / samples if samples else 0.0


def mean_rewards(updates: Sequence[Figures]) -> dict[str, float]:
    """Returns the mean of each function that the last update has, over the updates that have it."""
    found = dict[str, float]()
    for name in updates[-1].rewards if updates else ():
        having = [update for update in updates if name in update.rewards]
        found[name] = fmean((one.rewards[name] for one in having), [one.samples for one in having])
    return found


def is_flat(update: Figures) -> bool:
    """Returns whether the samples of each prompt of an update had equal rewards."""
    return update.zero_variance_groups >= update.groups


def is_cut(update: Figures) -> bool:
    """Returns whether nearly all samples of an update were cut off at their greatest length."""
    return update.truncated_fraction >= CUT_SHARE
