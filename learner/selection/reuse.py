"""Groups that an update trains a second time, by priority, as in DistRL's prioritised replay (arXiv 2410.14803).

- A group is trained twice at most, and never later than S allows.
- For the queue and the checkpoints it counts once, with its first update: what is here is memory of one learner alone.
  A crash, a restart or a rewind forgets it.
- A group that teaches nothing is not kept.

DistRL's priority of a trajectory is a weighted sum of its TD error, its importance ratio and its entropy; its weights
are not public, and GRPO has no critic. Here the mean |A| stands for the TD error, and 1 − Δ / (S + 1) for the ratio,
which leaves 1 as the lag Δ grows and is not known without another pass. The entropy is that of the sampled tokens,
−log μ. The three have equal weights.
"""

from collections.abc import Sequence

import numpy as np
import torch

from echo_queue.config import Config
from echo_queue.queue import staleness_rules
from echo_queue.records import Group
from learner.losses.advantages import group_advantages
from learner.selection.signal import teaches

STREAM = 2
"""Keeps these random numbers apart from those of the other methods, which have the same seed."""


class ReuseBuffer:
    """Holds the groups that were trained once and may be trained once more: at most B groups for each of S versions."""

    def __init__(self, config: Config) -> None:
        self._most, self._s, self._seed = config.selection.reuse_groups, config.staleness.s, config.run.seed
        self._advantage = config.learner.advantage
        self._groups: list[Group] = []

    def add(self, groups: Sequence[Group]) -> None:
        """Keeps groups that have been trained for the first time."""
        if self._most:
            self._groups += [group for group in groups if teaches(group)]

    def take(self, version: int) -> tuple[Group, ...]:
        """Takes out the groups that the update after `version` trains again, in the order in which they were added.

        They are drawn without replacement, with probabilities in proportion to their priorities.
        """
        self._groups = [one for one in self._groups if staleness_rules.admissible(version, one.oldest, self._s)]
        if not self._groups:
            return ()
        priorities = np.array([self.priority(group, version) for group in self._groups])
        generator = np.random.default_rng([self._seed, version, STREAM])
        count = min(self._most, len(self._groups))
        chosen = set(generator.choice(len(priorities), count, replace=False, p=priorities / priorities.sum()).tolist())
        taken = tuple(group for place, group in enumerate(self._groups) if place in chosen)
        self._groups = [group for place, group in enumerate(self._groups) if place not in chosen]
        return taken

    def priority(self, group: Group, version: int) -> float:
        """Returns the group's priority for the update after `version`; it is positive."""
        rewards = torch.tensor([sample.reward for sample in group.samples], dtype=torch.float32)
        advantage = float(group_advantages(rewards, self._advantage).abs().mean())
        freshness = 1 - (version - group.oldest) / (self._s + 1)
        drawn = sum(len(sample.tokens) - sum(end - start for start, end in sample.observed) for sample in group.samples)
        entropy = -sum(float(sample.logprobs.sum()) for sample in group.samples) / max(1, drawn)
        return advantage + freshness + max(0.0, entropy)
