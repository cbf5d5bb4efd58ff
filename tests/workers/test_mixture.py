"""A worker makes groups of each component by its settings. Services and engine are real; the test is the learner."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from echo_queue.queue.pool_status import pools_of
from tests.workers.worker_harness import WorkerHarness, tensors_of

pytestmark = pytest.mark.slow
Begin = Callable[..., WorkerHarness]
QUESTIONS = [f"What is the sum of {number} and 2?" for number in range(4)]
COUNTED = {"kind": "function", "function": "tests.workers.rewards:counts_ids"}
MIXTURE = [{"name": "counted", "max_new_tokens": 3, "environment": COUNTED}, {"name": "matched", "weight": 2}]


def begin(run: WorkerHarness, folder: Path, mixture: str) -> None:
    """Begins a learner with this mixture, which publishes the model."""
    run.configure()
    run.rules = replace(run.rules, mixture=mixture)
    run.learner_begins()
    run.publish(0, tensors_of(folder))


def test_the_samples_of_each_component_are_limited_and_scored_by_its_own_settings(harness: Begin, folder: Path) -> None:
    """One component has an environment of its own, and the other the run's."""
    run = harness(mixture=MIXTURE)
    begin(run, folder, run.config.mixture_weights)
    run.submit_as("counted.more", QUESTIONS)
    run.submit_as("matched", QUESTIONS, wanted="3")
    run.worker()
    for group in run.drain(8):
        lengths = [len(sample.tokens) for sample in group.samples]
        if group.set == "counted.more":
            assert [sample.reward for sample in group.samples] == lengths and max(lengths) <= 3
            assert all(
                length == 3 for sample, length in zip(group.samples, lengths, strict=True) if sample.finish == "length"
            )
        else:
            assert {sample.reward for sample in group.samples} <= {0.0, 1.0}
            assert max(lengths) > 3
    run.until(lambda: pools_of(run.status().workers)[0].generation.groups == 8, "a heartbeat that tells of all of them")
    (worker,) = run.status().workers
    assert worker.heartbeat and worker.heartbeat.groups == 8


def test_a_set_of_no_component_that_the_worker_knows_fails_with_the_reason(harness: Begin, folder: Path) -> None:
    run = harness(mixture=MIXTURE)
    begin(run, folder, "matched:2 strange:1")
    run.submit_as("strange", QUESTIONS[:1])
    run.submit_as("matched", QUESTIONS[:1], wanted="3")
    run.worker()
    (reason,) = run.died(1)
    assert "this worker names no component of set strange" in reason
    assert [group.set for group in run.drain(1)] == ["matched"]


def test_a_component_whose_reward_raises_or_hangs_costs_the_others_no_group(harness: Begin, folder: Path) -> None:
    hangs = {"kind": "function", "function": "tests.workers.stuck_components:hangs", "timeout_s": 1.0}
    raises = {"kind": "function", "function": "tests.workers.stuck_components:raises"}
    run = harness(
        mixture=[{"name": "hangs", "environment": hangs}, {"name": "raises", "environment": raises}, *MIXTURE]
    )
    begin(run, folder, run.config.mixture_weights)
    for name in ("hangs", "raises", "counted"):
        run.submit_as(name, QUESTIONS[:2])
    run.worker()
    assert {group.set for group in run.drain(2)} == {"counted"}
    reasons = run.died(4)
    assert sum("no such luck" in reason for reason in reasons) == 2, reasons
    assert sum("longer than environment.timeout_s = 1.0" in reason for reason in reasons) == 2, reasons
