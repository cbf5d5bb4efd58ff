"""The samples of an update that are trained: Shuffle-R1 (arXiv 2508.05612).

- Pairwise trajectory sampling: a group's k-th best sample by advantage is paired with its k-th worst, and the first
  pairs, those of the largest contrast, are kept.
- Advantage-based batch shuffle: pairs are drawn in rounds, each round without replacement, with probabilities in
  proportion to |A₁| + |A₂|. A pair that several rounds draw is trained that many times in the update.
- Each function depends on its arguments alone, so all ranks choose the same samples.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from echo_queue.config import Selection
from learner.batch.prepare import PromptSamples, SampleRow, Update, trained_tokens

STREAM = 1
"""Keeps these random numbers apart from those of the other methods, which have the same seed."""


class Pair(NamedTuple):
    """The places of two samples: the number of their group in the update, and their rows in it."""

    group: int
    best: int
    worst: int


def select_samples(update: Update, selection: Selection, seed: int, number: int) -> Update:
    """Returns the update that makes version `number`, of the samples that `selection` chooses.

    Groups and samples keep their order. `seed`: the run's.
    """
    if selection.pairs_kept == 1 and not selection.shuffle_rounds:
        return update
    pairs = [pair for at, group in enumerate(update.groups) for pair in contrasts(at, group.rows, selection.pairs_kept)]
    if selection.shuffle_rounds:
        weights = [_weight(update.groups[pair.group].rows, pair) for pair in pairs]
        pairs = draw(pairs, weights, selection.shuffle_rounds, np.random.default_rng([seed, number, STREAM]))
    times = Counter((pair.group, row) for pair in pairs for row in (pair.best, pair.worst))
    groups = tuple(
        PromptSamples(group.prompt, rows)
        for at, group in enumerate(update.groups)
        if (rows := tuple(row for place, row in enumerate(group.rows) for _ in range(times[at, place])))
    )
    return replace(update, groups=groups, tokens=trained_tokens(groups))


def contrasts(group: int, rows: Sequence[SampleRow], kept: float) -> list[Pair]:
    """Pairs the samples of a group from outside inwards, and returns the share `kept` of the pairs, at least one.

    Ties are broken by the samples' order. Of an odd number the one in the middle has no partner.
    """
    order = sorted(range(len(rows)), key=lambda place: -rows[place].advantage)
    most = len(rows) // 2
    return [Pair(group, order[k], order[-1 - k]) for k in range(max(1, int(most * kept)))]


def draw(pairs: Sequence[Pair], weights: Sequence[float], rounds: int, generator: np.random.Generator) -> list[Pair]:
    """Draws as many pairs as there are, in `rounds` rounds of equal size. A pair of weight 0 is never drawn."""
    total = sum(weights)
    if not total:
        return list(pairs)
    drawable = sum(weight > 0 for weight in weights)
    sizes = [len(pairs) // rounds + (turn < len(pairs) % rounds) for turn in range(rounds)]
    shares = np.array(weights) / total
    places = (generator.choice(len(pairs), min(size, drawable), replace=False, p=shares) for size in sizes)
    return [pairs[place] for chosen in places for place in chosen]


def _weight(rows: Sequence[SampleRow], pair: Pair) -> float:
    return abs(rows[pair.best].advantage) + abs(rows[pair.worst].advantage)
