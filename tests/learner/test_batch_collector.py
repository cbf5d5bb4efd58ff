"""The learner waits for groups until a deadline, which what leaves the backlog as trained already puts off."""

import threading

import pytest

from echo_queue.config import Config
from echo_queue.errors import DeadlineError
from echo_queue.queue import RunRules
from echo_queue.records import BASE
from echo_queue.records.validation import GroupLimits, GroupValidator
from learner import batch_collector
from learner.batch_collector import BatchCollector
from tests.queue.clients import Clients
from tests.queue.queue_harness import QueueHarness

TRAINED = 4_000


def test_passing_what_is_trained_already_is_no_standstill(queue: Clients, monkeypatch: pytest.MonkeyPatch) -> None:
    """Redis was lost. Each drain passes some prompts that checkpoints hold; then nobody generates the last one."""
    monkeypatch.setattr(batch_collector, "LISTEN_S", 0.05)
    settings = {"run": {"name": "a", "dir": "a"}, "queue": {"stall_deadline_s": 0.2}, "learner": {"batch_groups": 2}}
    config = Config.model_validate(settings)
    harness = QueueHarness(queue, RunRules(s=1, batch=2), prompts=0)
    queue.commit(0, "checkpoint", [f"a/0/{index}" for index in range(TRAINED)])
    harness.submit("a", TRAINED + 1)
    validator = GroupValidator(GroupLimits.of(config, vocabulary=8), BASE)
    collector = BatchCollector(config, queue.learner(), queue, validator, version=BASE, check=lambda: None)
    with pytest.raises(DeadlineError, match="0 of 2 are in hand"):
        collector.gather(0, threading.Event())
    assert (queue.audit().trained, queue.status().tasks) == (TRAINED, 1)
