"""The checks of what a reward function has returned, and its failure by its name."""

import math
from collections.abc import Mapping, Set
from reprlib import repr as shortened
from typing import Any


class RewardError(Exception):
    """A reward function failed, with this error's cause. The message is its name, empty if it has no table."""


def checked_rewards(rewards: Any, count: int) -> list[float]:
    """Returns `rewards` as `count` finite floats. Raises `ValueError` naming the one that is not."""
    if isinstance(rewards, str | bytes | Mapping | Set) or not _has_length(rewards):
        what = "None" if rewards is None else _a(type(rewards).__name__)
        raise ValueError(f"the reward function returned {what}; return a list with one number per completion")
    if len(rewards) != count:
        what = f"the environment was given {count} completions and returned a list of length {len(rewards)}"
        raise ValueError(what)
    return [_checked_reward(reward, position) for position, reward in enumerate(rewards)]


def _checked_reward(reward: Any, position: int) -> float:
    """Returns the reward as a finite float. A text is refused even if it is written like a number."""
    try:
        value = math.nan if isinstance(reward, str | bytes | bytearray) else float(reward)
    except (TypeError, ValueError, OverflowError):
        value = math.nan
    if math.isfinite(value):
        return value
    kind = "" if reward is None or isinstance(reward, float) else f", of type {type(reward).__name__},"
    raise ValueError(f"the environment returned {shortened(reward)}{kind} as reward {position}")


def _a(kind: str) -> str:
    return f"a{'n' if kind[0] in 'aeiou' else ''} {kind}"


def _has_length(rewards: Any) -> bool:
    """Returns whether `rewards` has a length, which an array of no dimensions has not."""
    try:
        len(rewards)
    except TypeError:
        return False
    return True
