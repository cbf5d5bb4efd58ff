"""The record of an update has the figures of the samples that it trained."""

from dataclasses import replace
from typing import Any

import pytest

from echo_queue.config import Config, Learner
from echo_queue.records import Group, Version
from echo_queue.reporting.metrics import UpdateMetrics
from learner.model.loading import prepare as for_scorer
from learner.model.policy import Policy
from learner.ranks.order import Order
from learner.update import learn
from learner.update_metrics import Seconds, describe
from tests.cli.test_view import STATUS
from tests.learner.synthetic import group, tiny_model

COMPONENTS = {"math": ["right"], "words": ["form", "short"], "count": ["right"]}


def scored_by(*functions: str) -> dict[str, Any]:
    """Returns the table of an environment whose reward is the sum of these functions."""
    return {"kind": "function", "rewards": {name: {"function": f"rewards:{name}"} for name in functions}}


def described(*groups: Group, reused: tuple[Group, ...] = (), **tables: Any) -> UpdateMetrics:
    """Trains version 1 on the groups that came and on those of earlier updates, and returns the record of it."""
    result = learn(Policy(for_scorer(tiny_model()), Learner()), [*groups, *reused], 1, Learner(), 1.0)
    figures: dict[str, Any] = {"alarm": "", "window": 2.0, "t_bcast_s": 0.0, "kappa": 1, "status": STATUS}
    whole = {"run": {"name": "t", "dir": "t"}, "environment": scored_by("right", "short", "new")} | tables
    figures["config"] = Config.model_validate(whole)
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


def test_a_record_has_the_figures_of_each_component_that_it_trained_and_of_no_other() -> None:
    mixture = [{"name": name, "environment": scored_by(*functions)} for name, functions in COMPONENTS.items()]
    right, wrong, long = group().samples[:3]
    right, wrong = replace(right, reward=1.0, parts=(1.0,)), replace(wrong, reward=0.0, parts=(0.0,))
    long = replace(long, reward=0.5, parts=(0.25, 0.25), finish="length")
    came = [
        replace(group(), set="math", samples=(right, wrong), rewards=("right",)),
        replace(group(), set="math.more", samples=(right, right), rewards=("right",)),
        replace(group(), set="words", samples=(long, long), rewards=("form", "short")),
    ]
    found = described(*came, reused=(replace(group(), set="count"),), mixture=mixture)
    assert list(found.components) == ["math", "words"], "an update that trained none of a component says nothing of it"
    math, words = found.components.values()
    assert (math.groups, math.samples, math.reward_mean, math.zero_variance_groups) == (2, 4, 0.75, 1)
    assert (math.truncated_fraction, math.rewards) == (0.0, {"right": 0.75})
    assert (words.groups, words.reward_mean, words.truncated_fraction) == (1, 0.5, 1.0)
    assert words.rewards == {"form": 0.25, "short": 0.25}
    assert found.rewards == {"right": 0.75, "form": 0.25, "short": 0.25}
    assert math.tokens + words.tokens == found.tokens
    assert math.length_mean == math.tokens / 4


def test_a_component_teaches_by_the_rewards_that_the_loss_compares() -> None:
    came = replace(group(lengths=(2, 5, 8)), set="math")
    equal = replace(came, samples=tuple(replace(sample, reward=1.0) for sample in came.samples))
    mixture: dict[str, Any] = {"mixture": [{"name": "math"}]}
    assert described(equal, **mixture).components["math"].zero_variance_groups == 1
    penalised = mixture | {"learner": {"long_from": 4, "long_until": 8}}
    assert described(equal, **penalised).components["math"].zero_variance_groups == 0


def test_a_record_of_a_run_without_a_mixture_has_no_components() -> None:
    assert described(group()).components == {}
