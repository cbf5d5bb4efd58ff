"""Shuffle-R1's choice of samples: pairs of the largest contrast, drawn in proportion to their advantages."""

from collections import Counter

import numpy as np
import pytest

from echo_queue.config import Learner, Selection
from learner.batch.prepare import Update, prepare
from learner.selection.pairs import Pair, contrasts, draw, select_samples
from tests.learner.synthetic import group

REWARDS = (0.1, 0.9, 0.4, 0.6, 0.0, 1.0, 0.5, 0.5)


def update_of(*rewards: tuple[float, ...]) -> Update:
    groups = [group(at, lengths=(3,) * len(row), rewards=row) for at, row in enumerate(rewards)]
    return prepare(groups, Learner())


def advantages(update: Update) -> list[list[float]]:
    return [[row.advantage for row in one.rows] for one in update.groups]


def test_the_best_is_paired_with_the_worst() -> None:
    rows = update_of(REWARDS).groups[0].rows
    assert contrasts(3, rows, 0.5) == [Pair(3, 5, 4), Pair(3, 1, 0)]
    assert contrasts(3, rows, 1.0)[2:] == [Pair(3, 3, 2), Pair(3, 6, 7)]
    assert contrasts(3, rows, 0.01) == [Pair(3, 5, 4)]


def test_half_of_the_samples_are_trained_with_the_advantages_of_their_whole_group() -> None:
    update = update_of(REWARDS, REWARDS[::-1])
    chosen = select_samples(update, Selection(pairs_kept=0.5), seed=1, number=1)
    whole, kept = advantages(update), advantages(chosen)
    assert kept == [[whole[0][place] for place in (0, 1, 4, 5)], [whole[1][place] for place in (2, 3, 6, 7)]]
    assert chosen.tokens == update.tokens / 2 == 24


def test_without_pairs_or_rounds_nothing_is_touched() -> None:
    update = update_of(REWARDS)
    assert select_samples(update, Selection(), seed=1, number=1) is update


@pytest.mark.parametrize("rounds", [1, 2, 3, 8])
def test_a_shuffle_trains_as_many_pairs_as_there_are_and_the_same_ones_on_every_rank(rounds: int) -> None:
    rows = (*REWARDS[:6], 0.3, 0.8), (0.0, 0.1), (1.0, 0.0) * 3
    update, selection = update_of(*rows), Selection(shuffle_rounds=rounds)
    chosen = [select_samples(update, selection, seed=5, number=7) for _ in range(2)]
    assert advantages(chosen[0]) == advantages(chosen[1])
    assert sum(map(len, advantages(chosen[0]))) == 16 and chosen[0].tokens == update.tokens
    if rounds == 1:
        assert advantages(chosen[0]) == advantages(update)
    if rounds == 8:
        assert advantages(chosen[0]) != advantages(select_samples(update, selection, seed=5, number=8))


def test_a_pair_is_drawn_in_proportion_to_its_advantages_and_never_for_none() -> None:
    pairs, generator = [Pair(at, 0, 1) for at in range(4)], np.random.default_rng(0)
    drawn = Counter(pair.group for _ in range(500) for pair in draw(pairs, [3.0, 2.0, 1.0, 0.0], 4, generator))
    assert drawn[3] == 0
    assert [drawn[at] / 2000 for at in range(3)] == pytest.approx([3 / 6, 2 / 6, 1 / 6], abs=0.04)


def test_pairs_without_any_advantage_stay_as_they_are() -> None:
    pairs = [Pair(0, 0, 1), Pair(1, 0, 1)]
    assert draw(pairs, [0.0, 0.0], 2, np.random.default_rng(0)) == pairs
