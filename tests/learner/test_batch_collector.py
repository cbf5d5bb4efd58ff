"""The learner waits for groups until a deadline, which what leaves the backlog as trained already puts off."""

import threading
from collections.abc import Callable

import pytest

from echo_queue.config import Config
from echo_queue.errors import DeadlineError, EchoQueueError
from echo_queue.queue import Heartbeat, LearnerQueue, Outcome, Payloads, RunRules
from echo_queue.records import BASE
from echo_queue.records.validation import PATIENCE, GroupLimits, GroupValidator
from learner import batch_collector
from learner.batch_collector import Batch, BatchCollector, Pause
from tests.queue.clients import Clients
from tests.queue.queue_harness import QueueHarness, group_of

TRAINED = 4_000
VOCABULARY = 8
BEATS = Heartbeat("made up", BASE, "generating")


def collector_of(
    queue: Clients, deadline_s: float, published: Callable[[], bool] = lambda: True, *, keep_open: bool = False
) -> BatchCollector:
    """Returns a collector of two groups an update, which gives up after `deadline_s`."""
    settings = {"queue": {"stall_deadline_s": deadline_s}, "learner": {"batch_groups": 2}, "rollout": {"group_size": 2}}
    config = Config.model_validate({"run": {"name": "a", "dir": "a", "keep_open": keep_open}} | settings)
    validator = GroupValidator(GroupLimits.of(config, VOCABULARY), BASE)
    learner = LearnerQueue(queue.caller, Payloads(validator=validator))
    return BatchCollector(config, learner, queue, validator, version=BASE, published=published, check=lambda: None)


def test_the_deadline_of_waiting_begins_with_the_first_publication(
    queue: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_collector, "LISTEN_S", 0.02)
    monkeypatch.setattr(batch_collector, "UNPUBLISHED_FACTOR", 1e6)
    QueueHarness(queue, RunRules(s=1, batch=2))
    answers = iter([False] * 10 + [True] * 1_000)
    with pytest.raises(DeadlineError, match="0 of 2 are in hand"):
        collector_of(queue, 0.05, lambda: next(answers)).gather(0, threading.Event())
    assert next(answers), "the learner gave up before it had published anything"


def test_a_first_publication_that_never_ends_is_named(queue: Clients, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_collector, "LISTEN_S", 0.02)
    QueueHarness(queue, RunRules(s=1, batch=2))
    with pytest.raises(DeadlineError, match="its first version was not published"):
        collector_of(queue, 0.01, lambda: False).gather(0, threading.Event())


def test_passing_what_is_trained_already_is_no_standstill(queue: Clients, monkeypatch: pytest.MonkeyPatch) -> None:
    """Redis was lost. Each drain passes some prompts that checkpoints hold; then nobody generates the last one."""
    monkeypatch.setattr(batch_collector, "LISTEN_S", 0.05)
    harness = QueueHarness(queue, RunRules(s=1, batch=2), prompts=0)
    queue.commit(0, "checkpoint", [f"a/0/{index}" for index in range(TRAINED)])
    harness.submit("a", TRAINED + 1)
    collector = collector_of(queue, 3.0)
    with pytest.raises(DeadlineError, match="0 of 2 are in hand"):
        collector.gather(0, threading.Event())
    assert (queue.audit().trained, queue.status().tasks) == (TRAINED, 1)


def test_a_run_that_is_kept_open_waits_for_prompts_without_a_deadline(
    queue: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_collector, "LISTEN_S", 0.01)
    monkeypatch.setattr(batch_collector, "FULL_AFTER_S", 0.0)
    harness = QueueHarness(queue, RunRules(s=1, batch=2), prompts=1)
    stop, looks = threading.Event(), iter(range(1_000))

    def published() -> bool:
        if next(looks) == 30:
            stop.set()
        return True

    collector = collector_of(queue, 0.02, published, keep_open=True)
    harness.complete(harness.lease(1))
    assert collector.gather(0, stop, uncommitted=lambda: True) is Pause.idle, "what is trained may be saved"
    found = collector.gather(0, stop)
    assert isinstance(found, Batch) and stop.is_set() and len(found.groups) == 1
    assert found.starved_s == 0, "the window does not widen for want of prompts"


@pytest.mark.parametrize("uncommitted", [True, False])
def test_a_wait_ends_once_redis_is_full_of_what_a_checkpoint_would_free(
    queue: Clients, monkeypatch: pytest.MonkeyPatch, uncommitted: bool
) -> None:
    monkeypatch.setattr(batch_collector, "LISTEN_S", 0.02)
    monkeypatch.setattr(batch_collector, "FULL_AFTER_S", 0.05)
    QueueHarness(queue, RunRules(s=1, batch=2))
    collector = collector_of(queue, 0.3)
    before = queue.client.config_get("maxmemory")["maxmemory"]
    queue.client.config_set("maxmemory", 1)
    try:
        if uncommitted:
            assert collector.gather(0, threading.Event(), uncommitted=lambda: True) is Pause.full
        else:
            with pytest.raises(DeadlineError, match="Redis is at maxmemory"):
                collector.gather(0, threading.Event())
    finally:
        queue.client.config_set("maxmemory", before)


def send_nothing_good(harness: QueueHarness, name: str) -> None:
    """A worker beats, and completes as many groups as it takes to be suspended; their tokens are another model's."""
    harness.queue.heartbeat(name, BEATS)
    tasks = harness.lease(PATIENCE, name)
    groups = [group_of(task, name, harness.version, length=2 * VOCABULARY) for task in tasks]
    assert harness.queue.complete(name, groups) == [Outcome.accepted] * PATIENCE


def test_a_learner_whose_last_worker_was_suspended_waits_for_the_good_one_that_is_away(
    queue: Clients, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(batch_collector, "LISTEN_S", 0.02)
    harness = QueueHarness(queue, RunRules(s=4, batch=2, pace=False))
    looks = iter(range(1_000))

    def published() -> bool:
        if "for another one" in caplog.text and next(looks) == 3:
            queue.heartbeat("good", BEATS)
            harness.complete(harness.lease(2, "good"), "good")
        return True

    collector = collector_of(queue, 60.0, published)
    send_nothing_good(harness, "stranger")
    found = collector.gather(0, threading.Event())
    assert isinstance(found, Batch) and {group.worker for group in found.groups} == {"good"}
    assert caplog.text.count("for another one") == 1, "it says once what it waits for"


def test_a_learner_whose_last_worker_was_suspended_and_to_which_no_other_comes_ends_with_that_reason(
    queue: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has had no good group for longer than the deadline by then, and yet that is not what it says."""
    monkeypatch.setattr(batch_collector, "LISTEN_S", 0.2)
    harness = QueueHarness(queue, RunRules(s=4, batch=2, pace=False))
    collector = collector_of(queue, 2.0)
    send_nothing_good(harness, "stranger")
    with pytest.raises(EchoQueueError, match="and no other one came for 2 s") as error:
        collector.gather(0, threading.Event())
    assert "worker stranger: 8 groups in a row could not be trained" in str(error.value)
    assert not isinstance(error.value, DeadlineError)
