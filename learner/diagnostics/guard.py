"""The guard of learning: a rule that says when stale data is about to break it, and what is done then.

- `learner.guard = "warn"` says so in the log and in `metrics.jsonl`. "act" also takes smaller steps, by √ESS and by how
  far the policy has moved from the data, in every update, and lets half as many batches be under way after each alarm.
- It never changes S: workers and the queue rely on that number.
- Only rank 0 has a guard, and a learner that starts again begins with an empty memory. The scale of the step needs
  none, so all ranks take the same step.
"""

import math
from collections import deque
from collections.abc import Collection
from statistics import fmean
from typing import Literal

from learner.diagnostics.ratios import RatioFigures

MOST_KL = 2.0
"""An alarm is raised while the policy is further than this from the data in the mean of `MEMORY` updates, in nats per
token: the mean of log μ − log π over an update's tokens. docs/learning.md says on which runs it was chosen."""
MEMORY = 10
NO_STEP = 1.0
"""The mean of (log ρ)² from which on a guard that acts takes no step."""
WIDEN = 0.25
"""Batches by which the window may grow again after an update without an alarm."""


class Guard:
    """Looks at each update; one without anything to train counts as fresh. `most`: the widest window of any use, in
    batches."""

    def __init__(self, mode: Literal["off", "warn", "act"], most: float) -> None:
        self._mode, self._most = mode, most
        self._distances: deque[float] = deque(maxlen=MEMORY)
        self.widest = most
        """The widest window in batches that the guard allows."""

    def look(self, kl: float) -> str:
        """Takes note of an update, whose tokens are `kl` nats from the policy on average. Returns what is wrong and
        what helps, as a sentence; empty if nothing is."""
        if self._mode == "off":
            return ""
        self._distances.append(kl)
        alarmed = too_far(self._distances)
        if self._mode == "act":
            self.widest = widest_window(self.widest, alarmed, self._most)
        return advice(fmean(self._distances)) if alarmed else ""


def too_far(distances: Collection[float]) -> bool:
    """Returns whether an alarm is due after updates at these distances, of which `MEMORY` are kept at most."""
    return len(distances) == MEMORY and fmean(distances) > MOST_KL


def advice(kl: float) -> str:
    """Returns the sentence of an alarm: what is wrong, and what helps."""
    return (
        f"the policy has moved {kl:.1f} nats per token away from the last {MEMORY} updates' data, so that learning may"
        " collapse: lower learner.lr or staleness.s, or choose a correction that cuts more (dppo, dapo)"
    )


def step_scale(figures: RatioFigures) -> float:
    """Returns the share by which the learning rate is multiplied: √ESS of the tokens times the room that is left.

    √ESS is VCPO's (arXiv 2602.17616). It weighs samples and takes their ESS; a correction of tokens weighs tokens, so
    theirs is taken here. The room is 1 while the mean of (log ρ)² is at most half of `NO_STEP`, and falls along a line
    to 0: no step is taken on data that the policy has left so far behind.
    """
    room = min(1.0, max(0.0, 2 - 2 * figures.second_moment / NO_STEP))
    return math.sqrt(figures.ess_tokens) * room


def widest_window(widest: float, alarmed: bool, most: float) -> float:
    """Returns the widest window in batches, from 1 to `most`: halved by an alarm, and slowly given back without one."""
    return max(1.0, widest / 2) if alarmed else min(most, widest + WIDEN)
