"""The guard of learning: a rule that says when stale data is about to break it, and what is done then.

- `learner.guard = "warn"` says so in the log and in `metrics.jsonl`. "act" also takes smaller steps, by √ESS, in every
  update, and lets half as many batches be under way after each alarm.
- It never changes S: workers and the queue rely on that number.
- Only rank 0 has a guard, and a learner that starts again begins with an empty memory. The scale of the step needs
  none, so all ranks take the same step.
"""

import math
from collections import deque
from statistics import fmean
from typing import Literal

from learner.diagnostics.ratios import RatioFigures

LEAST_ESS = 0.15
"""An alarm is raised while the tokens' effective sample size, a share, is below this in the mean of `MEMORY` updates.
benchmarks/stability.py says what that is worth."""
MEMORY = 10
WIDEN = 0.25
"""Batches by which the window may grow again after an update without an alarm."""


class Guard:
    """Looks at each update; one without anything to train counts as fresh. `most`: the widest window of any use, in
    batches."""

    def __init__(self, mode: Literal["off", "warn", "act"], most: float) -> None:
        self._mode, self._most = mode, most
        self._shares: deque[float] = deque(maxlen=MEMORY)
        self.widest = most
        """The widest window in batches that the guard allows."""

    def look(self, figures: RatioFigures) -> str:
        """Takes note of an update. Returns what is wrong, as a sentence; empty if nothing is."""
        if self._mode == "off":
            return ""
        self._shares.append(figures.ess_tokens)
        mean = fmean(self._shares)
        alarmed = len(self._shares) == MEMORY and mean < LEAST_ESS
        if self._mode == "act":
            self.widest = widest_window(self.widest, alarmed, self._most)
        if not alarmed:
            return ""
        return f"only {mean:.0%} of the last {MEMORY} updates' tokens count, by effective sample size"


def step_scale(figures: RatioFigures) -> float:
    """Returns √ESS of the tokens, by which the learning rate is multiplied (VCPO, arXiv 2602.17616).

    VCPO weighs samples and takes their ESS; a correction of tokens weighs tokens, so theirs is taken here.
    """
    return math.sqrt(figures.ess_tokens)


def widest_window(widest: float, alarmed: bool, most: float) -> float:
    """Returns the widest window in batches, from 1 to `most`: halved by an alarm, and slowly given back without one."""
    return max(1.0, widest / 2) if alarmed else min(most, widest + WIDEN)
