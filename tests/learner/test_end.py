"""The end of a learner that a user starts by itself, `python -m learner`."""

from threading import Event

import pytest

from echo_queue.config import Config
from echo_queue.errors import HOPELESS
from echo_queue.queue import diagnosis
from echo_queue.records import Published, Version
from learner.recovery import checkpoint
from learner.training_loop import train
from tests.learner.learner_harness import LearnerHarness
from tests.learner.ranks.test_ranked_learner import learning
from tests.waiting import wait_until

pytestmark = pytest.mark.slow
PROMPTS, DEAD = 8, 3
PATIENT = {"stall_deadline_s": 120.0}
OURS = "the observed ranges do not rise\n    → check the worker that made it"


def with_dead_prompts(harness: LearnerHarness, config: Config) -> None:
    """Submits prompts of which some have died, two of them of the same cause."""
    queue = harness.queue(config)
    harness.submit(config, PROMPTS)
    queue.publish(0, Published(Version(0, 0), "manifest", "digest"))
    for number, task in enumerate(queue.lease("w0", Version(0, 0), DEAD).tasks):
        queue.bury(task.id, OURS if number else "too long")


@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.proof(kind="ranks", share=0.2))])
def test_a_learner_whose_run_has_dead_prompts_says_why_and_does_not_end_as_a_success(
    harness: LearnerHarness, ranks: int
) -> None:
    config = harness.config(learner={"ranks": ranks}, queue=PATIENT)
    with_dead_prompts(harness, config)
    harness.work(config)
    for _ in range(2):  # a start of the finished run says it again
        with learning(config) as learner:
            assert learner.end() == HOPELESS, learner.printed()
            said = learner.printed().splitlines()
        assert said[-2].startswith(f"✗ run: {DEAD} of {PROMPTS} prompts died and are not in the model.")
        assert "The commonest reason, 2× (for example set/0/" in said[-2]
        assert said[-2].endswith("the observed ranges do not rise → check the worker that made it")
        assert said[-1].startswith("    → fix the cause;")
    assert harness.queue(config).status().finished


@pytest.mark.parametrize("raised", [0, 3])
def test_a_run_that_max_updates_has_ended_goes_on_under_a_higher_one(harness: LearnerHarness, raised: int) -> None:
    once, more, most = (harness.config(learner={"max_updates": updates}, queue=PATIENT) for updates in (1, raised, 9))
    harness.submit(once, 16)
    harness.work(once)
    assert train(once, Event())
    assert train(once, Event()), "it stays as it is"
    assert len(checkpoint.trained_ids(harness.store(once))) == 4
    assert train(more, Event())
    status = harness.queue(more).status()
    assert (status.learner.number, status.trained, status.finished) == ((raised or 4), 4 * (raised or 4), True)
    if not raised:
        assert train(most, Event()), "nothing is left"
        assert harness.queue(more).status().learner.lineage == 2
    assert harness.queue(more).audit().ok


def test_a_run_that_is_kept_open_trains_what_comes_and_ends_once_it_is_closed(harness: LearnerHarness) -> None:
    saved_rarely = {"checkpoint_updates": 1_000}
    kept, closed = (
        harness.config(run={"name": "test", "dir": harness.directory / "run", "keep_open": keep}, learner=saved_rarely)
        for keep in (True, False)
    )
    queue = harness.queue(kept)
    harness.submit(kept, 10, "first")
    harness.work(kept)
    learner = harness.learn(kept)
    wait_until(lambda: queue.status().trained == 8, "what fills updates, in a checkpoint")
    assert queue.status().waits_for_prompts and not diagnosis.causes(diagnosis.snapshot(queue), 90.0)
    harness.submit(kept, 9, "second")
    wait_until(lambda: queue.status().trained == 16, "the second set")
    assert not queue.status().finished and learner.is_alive()
    learner.terminate()
    learner.join(120)
    assert train(closed, Event())
    assert (queue.status().trained, queue.status().finished, queue.audit().ok) == (19, True, True)
