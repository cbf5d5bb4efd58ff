"""The record of an update has the figures of the samples that it trained."""

from dataclasses import replace
from typing import Any

import pytest

from echo_queue.config import Learner
from echo_queue.records import Group, Version
from echo_queue.reporting.metrics import UpdateMetrics
from learner.model.loading import prepare as for_scorer
from learner.model.policy import Policy
from learner.ranks.order import Order
from learner.update import learn
from learner.update_metrics import Seconds, describe
from tests.cli.test_view import STATUS
from tests.learner.synthetic import group, tiny_model


def described(*groups: Group, reused: tuple[Group, ...] = ()) -> UpdateMetrics:
    """Trains version 1 on the groups that came and on those of earlier updates, and returns the record of it."""
    result = learn(Policy(for_scorer(tiny_model()), Learner()), [*groups, *reused], 1, Learner(), 1.0)
    figures: dict[str, Any] = {"alarm": "", "window": 2.0, "t_bcast_s": 0.0, "kappa": 1, "status": STATUS}
    figures["functions"] = ("right", "short", "new")
    stored = {"anchor": 0, "delta": 0}
    return describe(Order(Version(1, 1), groups, reused), result, Seconds(0.0, 0.0, 1.0), stored=stored, **figures)


def test_the_lengths_of_answers_and_the_share_that_was_cut_off_are_those_of_the_samples_that_came() -> None:
    short, middle, long = group(lengths=(2, 4, 6)).samples
    came = replace(group(), samples=(short, middle, replace(long, finish="length")))
    found = described(came, reused=(group(1, lengths=(9, 9, 9)),))
    assert (found.length_mean, found.length_max) == (4.0, 6)
    assert found.truncated_fraction == pytest.approx(1 / 3)


def test_a_record_says_how_many_workers_lived_and_of_which_sets_its_groups_were() -> None:
    came = [replace(group(), set=name) for name in ("a", "b", "b")]
    found = described(*came, reused=(replace(group(), set="earlier"),))
    assert found.sets == {"a": 1, "b": 2}
    assert found.workers == sum(worker.heartbeat is not None for worker in STATUS.workers) > 0


def test_a_record_has_the_mean_of_each_reward_function_over_the_samples_that_it_scored() -> None:
    one, two = (
        replace(sample, parts=parts)
        for sample, parts in zip(group().samples[:2], [(1.0, -1.0), (0.0, -0.5)], strict=True)
    )
    both, older = replace(group(), samples=(one, two), rewards=("right", "short")), group()
    alone = replace(group(), samples=tuple(replace(one, parts=(0.5,)) for one in older.samples), rewards=("right",))
    assert described(both, older, alone).rewards == {"right": pytest.approx(2.5 / 5), "short": -0.75}
