"""A group is trained a second time at most, by priority and within S; the queue and the checkpoints count it once."""

import threading
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from echo_queue.config import Config
from echo_queue.records import Group
from echo_queue.reporting import metrics
from learner.recovery import checkpoint
from learner.selection.reuse import ReuseBuffer
from learner.training_loop import train
from tests.learner.learner_harness import LearnerHarness
from tests.learner.synthetic import group, sample


def settings(reuse_groups: int, s: int = 2, seed: int = 0) -> Config:
    return Config.model_validate(
        {
            "run": {"name": "a", "dir": "a", "seed": seed},
            "staleness": {"s": s},
            "selection": {"reuse_groups": reuse_groups},
        }
    )


def group_at(index: int, version: int = 0, rewards: tuple[float, ...] = (0.0, 1.0), logprob: float = -1.0) -> Group:
    samples = tuple(sample((1, 2), reward, version, logprob) for reward in rewards)
    return replace(group(index), samples=samples, task=f"set/0/{index}")


def names(groups: tuple[Group, ...]) -> list[str]:
    return [one.task for one in groups]


def test_a_group_is_taken_once_and_never_beyond_s() -> None:
    buffer = ReuseBuffer(settings(2, s=2))
    buffer.add([group_at(0, version=0), group_at(1, version=1), group_at(2, version=3)])
    assert names(buffer.take(3)) == ["set/0/1", "set/0/2"]
    assert buffer.take(3) == ()


def test_a_group_that_teaches_nothing_is_not_kept() -> None:
    buffer = ReuseBuffer(settings(2))
    buffer.add([group_at(0, rewards=(1.0, 1.0))])
    assert buffer.take(0) == ()


def test_nothing_is_kept_where_nothing_is_reused() -> None:
    buffer = ReuseBuffer(settings(0))
    buffer.add([group_at(0)])
    assert buffer.take(0) == ()


@pytest.mark.parametrize(
    ("better", "worse"),
    [
        ({"rewards": (0.0, 0.0, 1.0, 1.0)}, {"rewards": (0.0, 0.0, 0.0, 1.0)}),
        ({"version": 2}, {"version": 1}),
        ({"logprob": -2.0}, {"logprob": -0.5}),
    ],
    ids=["advantage", "freshness", "entropy"],
)
def test_what_makes_a_group_likelier_to_be_taken(better: dict[str, Any], worse: dict[str, Any]) -> None:
    buffer = ReuseBuffer(settings(1))
    assert buffer.priority(group_at(0, **better), 2) > buffer.priority(group_at(1, **worse), 2) > 0


def test_groups_are_drawn_in_proportion_to_priority_and_again_by_the_same_seed() -> None:
    taken = Counter[str]()
    for seed in range(400):
        pair = [group_at(0, logprob=-4.0), group_at(1, logprob=-0.1)]
        one, other = (ReuseBuffer(settings(1, seed=seed)) for _ in range(2))
        one.add(pair)
        other.add(pair)
        first = one.take(0)
        assert names(first) == names(other.take(0))
        taken.update(names(first))
    weights = [one.priority(item, 0) for item in pair]
    assert taken["set/0/0"] / 400 == pytest.approx(weights[0] / sum(weights), abs=0.08)


@pytest.mark.slow
def test_a_learner_that_chooses_by_all_methods_trains_every_prompt_once(harness: LearnerHarness) -> None:
    """The next learner does not reuse what this one has trained."""
    chosen = {"refill": True, "pairs_kept": 0.5, "shuffle_rounds": 2, "reuse_groups": 2}
    config = harness.config(selection=chosen)
    harness.work(config)
    for name in "ab":
        harness.submit(config, 16, name)
        train(config, threading.Event())
    queue, updates = harness.queue(config), metrics.read(config.run.dir / "metrics.jsonl")
    every = sorted(f"{name}/0/{index}" for name in "ab" for index in range(16))
    assert queue.audit().ok and queue.audit().trained == len(every)
    assert sorted(checkpoint.trained_ids(harness.store(config))) == every
    assert sorted(task for update in updates for task in update.trained_ids) == every
    for lineage in (1, 2):
        first, *others = (update for update in updates if update.lineage == lineage)
        assert not first.reused_lags and any(update.reused_lags for update in others)
        assert all(sum(update.reused_lags.values()) <= 2 for update in others)
    lags = [int(lag) for update in updates for lag in update.reused_lags]
    assert set(lags) <= set(range(1, config.staleness.s + 1))
