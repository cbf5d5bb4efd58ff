"""Tasks → replay → trained: once, whichever worker delivers, and only if the learner can still use it."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from echo_queue.queue import Outcome, RunRules
from echo_queue.records import Group, Task, Version
from echo_queue.records.group_codec import FORMAT, encode
from tests.queue.clients import Clients
from tests.queue.queue_harness import RULES, QueueHarness, group_of

ONCE = replace(RULES, max_attempts=1)
"""The rules of a run in which one bad group kills a task."""


def test_a_task_completed_twice_is_trained_once(queue: Clients) -> None:
    harness = QueueHarness(queue, prompts=1)
    tasks = harness.lease(1, "w1")
    assert harness.complete(tasks, "w1") == [Outcome.accepted]
    assert harness.complete(tasks, "w2") == [Outcome.duplicate]
    assert [group.worker for group in harness.update(1).groups] == ["w1"]
    assert harness.complete(tasks, "w2") == [Outcome.unknown]
    assert queue.audit().trained == 1


def test_a_completion_sent_again_by_its_worker_is_no_duplicate(queue: Clients) -> None:
    harness = QueueHarness(queue, prompts=1)
    tasks = harness.lease(1)
    assert harness.complete(tasks) == harness.complete(tasks) == [Outcome.accepted]
    assert harness.count("duplicate") == 0


def test_a_presumed_dead_worker_may_still_be_first(queue: Clients) -> None:
    harness = QueueHarness(queue, prompts=1)
    tasks = harness.lease(1, "slow")
    harness.expire()
    again = harness.lease(1, "other")
    assert harness.complete(tasks, "slow") == [Outcome.accepted]
    assert harness.complete(again, "other") == [Outcome.duplicate]


def test_an_unknown_task_is_refused(queue: Clients) -> None:
    harness = QueueHarness(queue)
    (task,) = harness.lease(1)
    assert harness.complete((replace(task, id="a/0/99"),)) == [Outcome.unknown]


def test_a_drained_group_equals_the_one_completed(queue: Clients) -> None:
    harness = QueueHarness(queue)
    (task,) = harness.lease(1)
    sent = group_of(task, "w1", harness.version)
    queue.complete("w1", [sent])
    (got,) = harness.drain(1).groups
    assert (got.task, got.worker, got.lineage, got.epoch, got.index) == ("a/0/0", "w1", 0, 0, 0)
    np.testing.assert_array_equal(got.prompt, sent.prompt)
    for one, other in zip(got.samples, sent.samples, strict=True):
        np.testing.assert_array_equal(one.tokens, other.tokens)
        np.testing.assert_array_equal(one.logprobs, other.logprobs)
        assert (one.spans, one.reward, one.finish) == (other.spans, other.reward, other.finish)


def test_the_oldest_versions_are_drained_first(queue: Clients) -> None:
    harness = QueueHarness(queue, RunRules(s=4, batch=2, pace=False))
    tasks = harness.lease(4)
    queue.advance(0, 1, 0, 8.0)
    harness.publish(1)
    harness.complete(tasks[:2])
    harness.complete(tasks[2:3], oldest=0)
    assert [group.task for group in harness.drain(2).groups] == [tasks[2].id, tasks[0].id]


def test_a_group_whose_bytes_are_broken_is_buried_not_trained(queue: Clients) -> None:
    harness = QueueHarness(queue, ONCE, prompts=2)
    good, bad = harness.lease(2)
    broken = bytes([FORMAT]) + b"nonsense"
    queue.client.fcall("eq1_complete", 1, queue.keys.prefix, "liar", bad.id, 0, 0, 0, 0, 2, 6, "0.5", "group", broken)
    harness.complete((good,))
    drained = harness.drain(2)
    assert ([group.task for group in drained.groups], drained.malformed) == ([good.id], 1)
    assert "header" in queue.dead()[0].reason


def test_a_group_that_is_not_what_its_entry_says_is_buried(queue: Clients) -> None:
    harness = QueueHarness(queue, ONCE, prompts=1)
    (task,) = harness.lease(1)
    _complete_as(queue, task, group_of(task, "liar", Version(0, 3)))
    assert harness.drain(1).malformed == 1
    assert "its content does not" in queue.dead()[0].reason


def _complete_as(queue: Clients, task: Task, content: Group) -> None:
    """A worker that announces version 0 but delivers `content`."""
    queue.client.fcall(
        "eq1_complete", 1, queue.keys.prefix, "liar", task.id, 0, 0, 0, 0, 2, 6, "0.5", "group", encode(content)
    )  # fmt: skip


def test_the_learner_knows_when_nothing_is_left_to_wait_for(queue: Clients) -> None:
    harness = QueueHarness(queue, replace(RULES, s=9), prompts=0)
    assert not harness.drain(2).exhausted
    harness.submit("a", 3)
    harness.complete(harness.lease(2))
    first = harness.drain(2)
    assert (len(first.groups), first.outside, first.exhausted) == (2, 1, False)
    harness.complete(harness.lease(2))
    last = harness.drain(2)
    assert (len(last.groups), last.outside, last.exhausted) == (1, 0, True)


def test_committing_twice_counts_once(queue: Clients) -> None:
    harness = QueueHarness(queue, prompts=4)
    harness.complete(harness.lease(2))
    ids = [group.task for group in harness.drain(2).groups]
    queue.advance(0, 1, 2, 8.0)
    assert [queue.commit(0, name, ids) for name in ("0/1", "0/1")] == [2, 0]
    harness.check()
    assert queue.audit().trained == 2
    assert queue.uncommit(0, "0/1", "", ids) == 2
    harness.check()
    assert queue.audit().trained == 0


@pytest.mark.parametrize("at_once", [1, 2, 3, 5])
def test_commits_go_in_steps_and_are_undone_in_steps(queue: Clients, at_once: int) -> None:
    harness = QueueHarness(queue, replace(RULES, batch=5), prompts=5)
    harness.complete(harness.lease(5))
    ids = [group.task for group in harness.drain(5).groups]
    learner = queue.learner(0)
    assert learner.commit("0/1", ids, at_once=at_once) == 5
    harness.check()
    assert (queue.client.hget(queue.keys.state, "committed"), queue.audit().trained) == (b"0/1", 5)
    assert learner.uncommit("0/1", "", ids, at_once=at_once) == 5
    harness.check()
    assert (queue.client.hget(queue.keys.state, "committed"), queue.audit().trained) == (b"", 0)
    assert queue.client.lrange(queue.keys.redo, 0, -1) == [task.encode() for task in ids], "in their old order"


def test_a_group_of_8_by_1280_tokens_is_at_most_80_kb_in_redis(queue: Clients) -> None:
    harness = QueueHarness(queue, prompts=1)
    (task,) = harness.lease(1)
    small = group_of(task, "w1", harness.version)
    long = replace(small.samples[0], tokens=np.zeros(1024, np.int32), logprobs=np.zeros(1024, np.float32))
    queue.complete("w1", [replace(small, prompt=np.zeros(256, np.int32), samples=(long,) * 8)])
    entries: Any = queue.client.xrange(queue.keys.replay)
    ((_, words),) = entries
    assert sum(len(name) + len(value) for name, value in words.items()) <= 80_000


def test_a_group_is_shown_without_reading_the_others(queue: Clients) -> None:
    run = QueueHarness(queue)
    tasks = run.lease(20)
    run.queue.complete("w1", [group_of(task, "w1", run.version, length=1000) for task in tasks])
    before = sent_by_the_server(queue)
    shown = queue.group_in_replay(tasks[3].id)
    assert shown is not None and shown.task == tasks[3].id
    assert sent_by_the_server(queue) - before < 3 * len(encode(shown))
    newest = queue.group_in_replay()
    assert newest is not None and newest.task == tasks[-1].id
    assert queue.group_in_replay("a/0/39") is None, "it is in the backlog"
    run.drain(4)
    assert queue.group_in_replay(tasks[0].id) is not None, "it is not trained yet"


def sent_by_the_server(queue: Clients) -> int:
    return int(queue.client.info("stats")["total_net_output_bytes"])
