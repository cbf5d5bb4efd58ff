"""The samples of an update assigned to ranks, by longest processing time first (Graham 1969, doi:10.1137/0117039).

- The largest parts come first, and each goes to the rank with the least load so far.
- A part is divided only if it would carry that rank beyond a bound: 5 % above the mean load, or above the largest
  sample's. The bound rises by 5 % until all samples fit below it.
- The same parts are always assigned in the same way: ties go to the first, and sums are taken in one order.
"""

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from operator import attrgetter
from typing import Self

import numpy as np
import numpy.typing as npt

from learner.batch.prepare import PromptSamples

UNEVEN = 0.05
"""A rank's load may lie this share above the mean before a prompt's samples are divided among ranks."""


Loads = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Part:
    """Some samples of a group, the longest first, and what they cost."""

    group: int
    samples: PromptSamples
    prompt_load: float
    row_loads: Loads

    @cached_property
    def loads(self) -> Loads:
        """The costs of the prompt with its first sample, then with its first two, and so on."""
        return self.prompt_load + np.cumsum(self.row_loads)

    @cached_property
    def load(self) -> float:
        return float(self.loads[-1])

    @cached_property
    def largest(self) -> float:
        """The cost of the prompt with its most expensive sample."""
        return float(self.prompt_load + self.row_loads.max())

    def divided(self, count: int) -> tuple[Self, Self | None]:
        """Returns the first `count` samples and the others; None if there are no others."""
        prompt, rows = self.samples.prompt, self.samples.rows
        first, rest = (
            type(self)(self.group, PromptSamples(prompt, rows[place]), self.prompt_load, self.row_loads[place])
            for place in (slice(count), slice(count, None))
        )
        return first, rest if rest.samples.rows else None


Order = Callable[[Part], float]
BY_LOAD: Order = attrgetter("load")
"""Keeps more prompts' samples together."""
BY_LARGEST: Order = attrgetter("largest")
"""Leaves small samples, which fit in anywhere, to the end."""


def assign(parts: Sequence[Part], ranks: int) -> list[list[PromptSamples]]:
    """Returns the samples of each rank, in groups; a rank may have none."""
    if not parts:
        return [[] for _ in range(ranks)]
    bound = max(sum(part.load for part in parts) / ranks, *(part.largest for part in parts))
    while True:
        bound *= 1 + UNEVEN
        for order in BY_LOAD, BY_LARGEST:
            assigned = _assigned_within(bound, parts, ranks, order)
            if assigned is not None:
                return [_in_groups(own) for own in assigned]


def _assigned_within(bound: float, parts: Sequence[Part], ranks: int, order: Order) -> list[list[Part]] | None:
    """Returns the parts of each rank, some of them divided; None if a sample does not fit below the bound."""
    waiting = [(-order(part), number, part) for number, part in enumerate(parts)]
    loads = [(0.0, rank) for rank in range(ranks)]
    assigned: list[list[Part]] = [[] for _ in range(ranks)]
    heapq.heapify(waiting)
    while waiting:
        _, number, part = heapq.heappop(waiting)
        load, rank = loads[0]
        count = int(np.searchsorted(part.loads, bound - load, side="right"))
        if count == 0:
            return None
        part, rest = part.divided(count)
        if rest:
            heapq.heappush(waiting, (-order(rest), number, rest))
        assigned[rank].append(part)
        heapq.heapreplace(loads, (load + part.load, rank))
    return assigned


def _in_groups(parts: Sequence[Part]) -> list[PromptSamples]:
    """Puts the parts of a group together again that went to the same rank."""
    groups = []
    for _, found in groupby(sorted(parts, key=lambda part: part.group), key=lambda part: part.group):
        of_group = [part.samples for part in found]
        groups.append(PromptSamples(of_group[0].prompt, tuple(row for part in of_group for row in part.rows)))
    return groups
