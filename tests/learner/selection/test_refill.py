"""With refill an update takes groups until B of them teach; the others are trained with it, and none is lost."""

import threading
from dataclasses import replace

import pytest

from echo_queue.config import Config
from echo_queue.queue import RunRules
from echo_queue.records import BASE, Group, Task
from echo_queue.records.validation import GroupLimits, GroupValidator
from learner import batch_collector
from learner.batch_collector import Batch, BatchCollector
from learner.selection.signal import teaches
from tests.queue.clients import Clients
from tests.queue.queue_harness import QueueHarness, group_of

B = 2


class Refilling(QueueHarness):
    """A run at S = 0 whose only worker completes one task whenever the learner has looked for groups in vain.

    The groups of the prompts `flat` have equal rewards.
    """

    def __init__(self, queue: Clients, flat: set[int], prompts: int = 20) -> None:
        super().__init__(queue, RunRules(s=0, batch=B), prompts)
        self.flat = flat
        self.version = self.version._replace(lineage=queue.resume(rules=self.rules).lineage)
        self.collector = self.open_collector()

    def open_collector(self) -> BatchCollector:
        settings = {"run": {"name": "a", "dir": "a"}, "staleness": {"s": 0}, "selection": {"refill": True}}
        config = Config.model_validate(settings | {"learner": {"batch_groups": B}, "queue": {"stall_deadline_s": 10.0}})
        validator = GroupValidator(GroupLimits.of(config, vocabulary=8), BASE)
        self.learner = self.queue.learner(self.version.lineage)
        return BatchCollector(
            config, self.learner, self.queue, validator, version=BASE, published=lambda: True, check=self.work
        )

    def work(self) -> None:
        self.queue.complete("w1", [self.generated(task) for task in self.lease(1)])

    def generated(self, task: Task) -> Group:
        made = group_of(task, "w1", self.version)
        if task.index not in self.flat:
            return made
        return replace(made, samples=tuple(replace(one, reward=1.0) for one in made.samples))

    def gather(self) -> Batch:
        batch = self.collector.gather(self.version.number, threading.Event())
        assert isinstance(batch, Batch)
        return batch

    def in_order(self, batch: Batch) -> list[int]:
        return [group.index for group in batch.groups]


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_collector, "LISTEN_S", 0.01)


def test_groups_without_signal_are_made_up_for_at_s_0(queue: Clients) -> None:
    """Both prompts that the bound admits teach nothing, so the update could never be filled if they counted for it."""
    run = Refilling(queue, flat={0, 1, 3})
    batch = run.gather()
    assert [group.index for group in batch.groups if teaches(group)] == [2, 4]
    assert run.in_order(batch) == [0, 1, 2, 3, 4]
    run.learner.advance(1, len(batch.groups) - batch.skipped, 1.0)
    assert run.queue.status().uncommitted == 5
    assert run.learner.commit("checkpoint", [group.task for group in batch.groups]) == 5
    run.check()
    assert (run.queue.audit().trained, run.queue.status().uncommitted) == (5, 0)


def test_an_update_takes_three_batches_at_most(queue: Clients) -> None:
    run = Refilling(queue, flat=set(range(20)))
    assert run.in_order(run.gather()) == [0, 1, 2, 3, 4, 5]
    assert run.count("admitted") == 6, "what is admitted beyond them would be too late for S = 0"


def test_the_last_prompts_are_trained_whether_they_teach_or_not(queue: Clients) -> None:
    run = Refilling(queue, flat={1, 2}, prompts=3)
    assert run.in_order(run.gather()) == [0, 1, 2]


def test_a_learner_that_died_while_it_refilled_takes_the_same_groups_again(queue: Clients) -> None:
    """What was skipped and not trained counts again, and the next learner skips it anew."""
    run = Refilling(queue, flat={0, 1, 3})
    first = run.in_order(run.gather())
    run.version = run.version._replace(lineage=queue.resume(rules=run.rules).lineage)
    assert queue.status().uncommitted == 0
    run.collector = run.open_collector()
    again = run.gather()
    assert (run.in_order(again), again.skipped) == (first, 0)


def test_a_repeated_skip_counts_once(queue: Clients) -> None:
    run = Refilling(queue, flat=set())
    words = [run.version.lineage, 1, 2]
    assert [queue.caller.call("skip", *words) for _ in range(2)] == [2, 2]
