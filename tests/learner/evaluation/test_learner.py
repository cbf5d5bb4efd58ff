"""Evaluations of a learner that trains, with its own threads."""

from threading import Event

import pytest

from echo_queue.config import Evaluation
from echo_queue.evaluation import stored
from echo_queue.reporting.evaluation_record import EvaluationRecord
from learner.training_loop import train
from tests.learner.learner_harness import LearnerHarness

pytestmark = pytest.mark.slow
PATIENT = {"stall_deadline_s": 120.0}


def test_a_run_ends_once_its_last_version_is_evaluated(harness: LearnerHarness) -> None:
    held_out = Evaluation(name="held-out", source="made up", samples=2, every_updates=2)
    config = harness.config(queue=PATIENT).model_copy(update={"evaluation": (held_out,)})
    harness.submit(config, 7, "held-out", order="held_out")
    harness.submit(config, 24)
    for name in ("w1", "w2"):
        harness.work(config, name=name)
    assert train(config, Event())
    queue = harness.queue(config)
    status, results = queue.status(), [one for one in EvaluationRecord(config.run.dir).read() if not one.given_up]
    assert status.finished and status.evaluation is None and queue.audit().ok
    assert (status.submitted, status.trained) == (24, 24), "no held-out prompt is trained"
    numbers = [one.version.number for one in results]
    assert numbers == sorted(set(numbers)) and numbers[-1] == 6
    assert {(one.prompts, one.failed, one.mean) for one in results} == {(7, 0, 0.5)}
    assert sorted(number for _, (_, number) in stored.versions(harness.store(config))) == numbers


def test_a_run_whose_max_updates_is_raised_keeps_its_curve(harness: LearnerHarness) -> None:
    held_out = Evaluation(name="held-out", source="made up", samples=2, every_updates=0)
    once, more = (
        harness.config(learner={"max_updates": updates}, queue=PATIENT).model_copy(update={"evaluation": (held_out,)})
        for updates in (1, 2)
    )
    harness.submit(once, 3, "held-out", order="held_out")
    harness.submit(once, 16)
    harness.work(once)
    assert train(once, Event())
    assert train(more, Event())
    results = [one for one in EvaluationRecord(more.run.dir).read() if not one.given_up]
    assert [one.version.number for one in results][-2:] == [1, 2] and {one.version.lineage for one in results} == {1, 2}
    assert harness.queue(more).audit().ok
