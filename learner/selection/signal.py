"""The groups that an update takes, and how many it still lacks: DAPO's dynamic sampling (arXiv 2503.14476, 3.2).

A group teaches if its samples differ in reward; otherwise each of its advantages is 0.
"""

from collections.abc import Iterable

import numpy as np

from echo_queue.records import Group

MOST_BATCHES = 3
"""An update that is filled up takes so many times B groups at most, so that hopeless prompts cannot hold it up."""


def teaches(group: Group) -> bool:
    """Returns whether the rewards differ, in the precision of the advantages."""
    rewards = np.array([sample.reward for sample in group.samples], np.float32)
    return bool((rewards != rewards[0]).any())


class UpdateGroups:
    """Collects the groups of one update of B = `size` groups.

    With `refill` the update is full once B of its groups teach, or once it has `MOST_BATCHES` times B groups; without,
    once it has B groups.
    """

    def __init__(self, size: int, refill: bool) -> None:
        self._size, self._refill = size, refill
        self.groups: list[Group] = []
        self.silent: list[Group] = []
        """Those of the groups that teach nothing; without refill nobody asks, and there are none."""

    def add(self, groups: Iterable[Group]) -> None:
        """Takes the groups in this order."""
        for group in groups:
            self.groups.append(group)
            if self._refill and not teaches(group):
                self.silent.append(group)

    @property
    def lacking(self) -> int:
        """Returns how many groups may be drained for the update now; 0 or less: it is full."""
        have, silent = len(self.groups), len(self.silent)
        return min(self._size - have + silent, MOST_BATCHES * self._size - have)

    @property
    def skippable(self) -> list[Group]:
        """Returns the silent groups that the queue may count as trained ahead of the update.

        A full update has B groups besides, as many as the queue expects of it: all that is admitted in place of these
        has its turn when the queue says.
        """
        return self.silent[: (MOST_BATCHES - 1) * self._size]
