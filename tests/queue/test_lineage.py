"""Restarts of the learner: fencing, what was drained, and weights that were left behind."""

from dataclasses import replace

import pytest

from echo_queue.errors import FencedError, Problem, SetBackError
from echo_queue.queue import Chunk, LearnerQueue, Outcome, PromptSet, RunKeys, RunRules, learner
from echo_queue.records import BASE, PromptShard, Published, Version
from echo_queue.records.group_codec import CodecError
from tests.queue.clients import Clients
from tests.queue.queue_harness import QueueHarness
from tests.queue.test_clients import moves

RULES = RunRules(s=4, batch=2, pace=False)
UNFENCED = {"resume", "probe_room"}
"""The move of a learner that begins its lineage, and the one that changes nothing."""


def _restart(harness: QueueHarness, version: int, held: tuple[str, ...] = ()) -> int:
    """A learner that resumes from a checkpoint of `version`; `held` is what the queue has not been told of."""
    lineage = harness.queue.resume(Version(harness.version.lineage, version) if version else BASE).lineage
    harness.version = Version(lineage, version)
    if held:
        harness.commit(list(held))
    harness.check()
    return lineage


def test_a_learner_that_was_taken_over_is_fenced_in_every_move(queue: Clients) -> None:
    harness = QueueHarness(queue, RULES)
    assert _restart(harness, 0) == 1
    for move in sorted(moves(LearnerQueue) - UNFENCED):
        with pytest.raises(FencedError, match="lineage 0 was taken over by 1"):
            queue.caller.call(move, 0, "word", "word", "word")
    with pytest.raises(SetBackError, match="Redis has forgotten"):
        queue.drain(2, 1)


def test_a_bad_group_is_buried_at_its_place_only(queue: Clients) -> None:
    """A task that was made again meanwhile has another place; what the old one held is no reproach to it."""
    harness = QueueHarness(queue, replace(RULES, max_attempts=1))
    (task,) = harness.lease(1)
    harness.complete((task,))
    place = queue.client.hget(queue.keys.open, task.id).split()[1]  # type: ignore[union-attr]
    bad = CodecError(Problem("a group", "bad", ""))
    assert queue.reject_group(0, task.id.encode(), b"1-1", bad) is None
    assert queue.reject_group(0, task.id.encode(), place, bad) == "w1"
    assert queue.reject_group(0, task.id.encode(), place, bad) is None
    assert (queue.audit().dead, queue.dead()[0].worker) == (1, "w1")
    harness.check()


def test_what_a_learner_has_in_hand_is_not_buried(queue: Clients) -> None:
    harness = QueueHarness(queue, RULES)
    harness.complete(harness.lease(2))
    (group,) = harness.drain(1).groups
    assert not queue.bury(group.task, "by hand")
    assert queue.bury("a/0/1", "by hand")


def test_a_run_with_anything_left_to_train_does_not_finish(queue: Clients) -> None:
    harness = QueueHarness(queue, RULES, prompts=2)
    assert not queue.finish(0)
    tasks = harness.lease(2)
    assert not queue.finish(0)
    harness.complete(tasks)
    assert not queue.finish(0)
    harness.update()
    assert not queue.status().finished
    assert queue.finish(0)
    assert queue.finish(0)
    assert (queue.status().finished, harness.leased(1).finished) == (True, True)


@pytest.mark.parametrize("what", ["declare", "submit", "revive"])
def test_a_finished_run_is_open_again_once_something_new_comes(queue: Clients, what: str) -> None:
    harness = QueueHarness(queue, RULES, prompts=2)
    if what == "submit":
        queue.declare(PromptSet("more", "elsewhere"), [Chunk(0, 0, 1)])
    (lost, _) = harness.lease(2)
    assert queue.bury(lost.id, "by hand")
    assert queue.finish(0, force=True)
    assert queue.status().finished
    match what:
        case "declare":
            queue.declare(PromptSet("more", "elsewhere"), [Chunk(0, 0, 1)])
        case "submit":
            queue.submit("more", 0, PromptShard("shards/more", 0, 1))
        case "revive":
            queue.revive([lost.id])
    assert (queue.status().finished, harness.leased(1).finished) == (False, False)
    assert queue.finish(0, force=True)
    assert queue.status().finished


def test_after_a_restart_the_drained_groups_come_again_in_order(queue: Clients) -> None:
    harness = QueueHarness(queue, RULES)
    harness.complete(harness.lease(6))
    before = [group.task for group in harness.drain(4).groups]
    lineage = _restart(harness, 0)
    assert [group.task for group in queue.pending(lineage)] == before
    assert [group.task for group in queue.pending(lineage)] == before
    assert len(harness.drain(9).groups) == 2


def test_what_the_checkpoint_holds_is_committed_at_restart_and_not_trained_again(queue: Clients) -> None:
    harness = QueueHarness(queue, RULES)
    harness.complete(harness.lease(4))
    ids = [group.task for group in harness.drain(4).groups]
    queue.advance(0, 1, 2, 8.0)
    queue.advance(0, 2, 2, 8.0)
    # killed after the checkpoint of version 1 was durable and before it was committed
    lineage = _restart(harness, 1, tuple(ids[:2]))
    assert queue.audit().trained == 2
    assert [group.task for group in queue.pending(lineage)] == ids[2:]
    assert (queue.status().learner, queue.status().uncommitted) == (Version(1, 1), 0)


def test_the_checkpoint_is_believed_even_where_redis_forgot_the_completion(queue: Clients) -> None:
    harness = QueueHarness(queue, RULES, prompts=3)
    harness.lease(1)
    _restart(harness, 1, ("a/0/0", "a/0/1"))
    assert queue.audit().trained == 2
    harness.publish(1)
    assert [task.id for task in harness.lease(9)] == ["a/0/2"]


@pytest.mark.parametrize("others", [(), ("b/0/0",)], ids=["alone", "beside another"])
def test_the_checkpoint_is_believed_even_where_redis_forgot_the_admission(
    queue: Clients, others: tuple[str, ...]
) -> None:
    harness = QueueHarness(queue, RULES, prompts=0)
    if others:
        harness.submit("b", len(others))
    _restart(harness, 1, ("a/0/1",))
    harness.publish(1)
    harness.submit("a", 3)
    assert [task.id for task in harness.lease(9)] == [*others, "a/0/0", "a/0/2"]
    assert queue.audit().trained == 1


def test_a_queue_that_has_forgotten_everything_is_told_of_all_checkpoints_at_once(queue: Clients) -> None:
    harness = QueueHarness(queue, RULES, prompts=0)
    held = ["a/0/1", "a/1/0", "a/1/9", "b.c/0/2"]
    for _ in range(2):
        assert queue.restore(0, "0001/00000003", held)
    harness.submit("a", 10, epochs=2)
    harness.submit("b.c", 3)
    assert queue.audit().trained == 2, "the others count once they would be admitted"
    harness.rules = replace(RULES, s=100)
    queue.overrule(harness.rules)
    queue.admit()
    assert not {task.id for task in harness.lease(100)} & set(held)
    assert queue.audit().trained == len(held) and not queue.client.exists(queue.keys.settled)
    assert not list(queue.client.scan_iter(queue.keys.settled_bits("*")))
    assert queue.resume().committed == "0001/00000003"


def test_what_a_restored_checkpoint_held_may_be_undone(queue: Clients) -> None:
    """The queue trains again what it has passed by then. It forgets the rest, and admits it when its turn comes."""
    harness = QueueHarness(queue, RULES, prompts=0)
    held = ["a/0/0", "a/0/1", "a/0/28"]
    assert queue.restore(0, "0001/00000003", held)
    harness.submit("a", 30)
    assert queue.audit().trained == 2
    assert queue.uncommit(0, "0001/00000003", "", held) == 2
    harness.check()
    assert (queue.audit().trained, queue.client.lrange(queue.keys.redo, 0, -1)) == (0, [b"a/0/0", b"a/0/1"])
    assert not queue.client.exists(queue.keys.settled, queue.keys.settled_bits("a/0"))


@pytest.mark.parametrize("known", ["a task", "a trained one", "one to train again", "a checkpoint"])
def test_a_queue_that_knows_of_anything_is_not_restored(queue: Clients, known: str) -> None:
    """It is told by commits what checkpoints hold: what the cursors have passed already would count twice."""
    harness = QueueHarness(queue, RULES, prompts=0 if known == "a checkpoint" else 1)
    if known == "a checkpoint":
        assert queue.restore(0, "0001/00000001", ())
    elif known != "a task":
        harness.complete(harness.lease(1))
        harness.commit([group.task for group in harness.drain(1).groups])
    if known == "one to train again":
        queue.uncommit(0, "checkpoint-1", "", ["a/0/0"])
    assert not queue.restore(0, "0001/00000003", ["a/0/0", "b/0/0"])
    assert not queue.client.exists(queue.keys.settled)
    harness.check()


def test_too_many_prompts_for_one_call_are_left_to_commits(queue: Clients, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learner, "RESTORE_MAX_BYTES", 3)
    QueueHarness(queue, RULES, prompts=0)
    assert not queue.restore(0, "0001/00000003", ["a/0/15", "b/0/15"])
    assert queue.restore(0, "0001/00000003", ["a/0/15", "b/0/7"])


def test_abandoned_weights_are_unpublished_and_their_work_goes_back(queue: Clients) -> None:
    harness = QueueHarness(queue, RULES, prompts=20)
    for version in (1, 2, 3):
        queue.advance(0, version, 0, 8.0)
    harness.publish(3)
    drained, ready, in_flight = harness.lease(1), harness.lease(1), harness.lease(1)
    harness.complete(drained)
    assert len(harness.drain(1).groups) == 1
    harness.complete(ready)

    lineage = _restart(harness, 1)
    assert queue.published() is None
    assert harness.lease(9) == ()
    assert queue.pending(lineage) == ()
    assert harness.drain(9).abandoned == 1
    assert harness.count("abandoned") == 2
    assert queue.renew("w1", {in_flight[0].id: 3}) == [in_flight[0].id]

    harness.publish(1)
    behind = harness.leased(1, "w9", version=Version(0, 3))
    assert behind.abandoned
    assert behind.tasks[0].min_pv <= 1
    harness.version = Version(0, 3)
    assert harness.complete(in_flight) == [Outcome.late]
    harness.version = Version(lineage, 1)
    assert not harness.leased(1, "w10", version=Version(0, 1)).abandoned


def test_a_tag_from_before_the_restart_asks_for_no_version_that_is_gone(queue: Clients) -> None:
    harness = QueueHarness(queue, RunRules(s=0, batch=2, pace=False))
    for version in (1, 2, 3):
        queue.advance(0, version, 0, 8.0)
        harness.publish(version)
    assert queue.status().tasks > 0
    _restart(harness, 1)
    harness.publish(1)
    assert {task.min_pv for task in harness.lease(9)} == {1}


def test_the_pointer_only_moves_forward(queue: Clients) -> None:
    harness = QueueHarness(queue, RULES)
    for version in (1, 2):
        queue.advance(0, version, 0, 8.0)
    assert queue.publish(0, Published(Version(0, 2), "two", "d"))
    assert not queue.publish(0, Published(Version(0, 2), "two", "d"))
    assert not queue.publish(0, Published(Version(0, 1), "one", "d"))
    assert queue.published() == Published(Version(0, 2), "two", "d")
    with pytest.raises(ValueError, match="lineage 0 cannot publish"):
        queue.publish(0, Published(Version(1, 3), "m", "d"))
    harness.check()


def test_only_todays_learner_says_whom_to_trust(queue: Clients) -> None:
    harness = QueueHarness(queue, RULES)
    assert queue.run_keys() is None
    ours, others = RunKeys("ab" * 32, b"tokens", b"chunks"), RunKeys("cd" * 32, b"t", b"c")
    queue.publish_keys(0, others)
    lineage = _restart(harness, 0)
    queue.publish_keys(lineage, ours)
    with pytest.raises(FencedError):
        queue.publish_keys(0, others)
    assert queue.run_keys() == ours
    assert "tokens" not in repr(ours)


def test_advancing_again_changes_nothing(queue: Clients) -> None:
    QueueHarness(queue, RULES)
    queue.advance(0, 1, 2, 3.0)
    queue.advance(0, 1, 2, 5.0)
    status = queue.status()
    assert (status.learner.number, status.uncommitted, status.window) == (1, 2, 3.0)
