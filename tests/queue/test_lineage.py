"""Restarts of the learner: fencing, what was drained, and weights that were left behind."""

import pytest

from echo_queue.errors import FencedError, SetBackError
from echo_queue.queue import Outcome, Queue, QueuePolicy, Trust
from echo_queue.records import Published, Version
from tests.queue.scene import Scene

POLICY = QueuePolicy(s=4, batch=2, pace=False)


def _restart(scene: Scene, version: int, held: tuple[str, ...] = ()) -> int:
    """A learner that resumes from a checkpoint of `version`; `held` is what the queue has not been told of."""
    lineage = scene.queue.resume(version).lineage
    scene.version = Version(lineage, version)
    if held:
        scene.commit(list(held))
    scene.check()
    return lineage


def test_a_learner_that_was_taken_over_is_fenced_in_every_move(queue: Queue) -> None:
    scene = Scene(queue, POLICY)
    assert _restart(scene, 0) == 1
    for move in (
        lambda: queue.drain(0, 1),
        lambda: queue.pending(0),
        lambda: queue.advance(0, 1, 1, 1.0),
        lambda: queue.commit(0, "checkpoint", ["a/0/0"]),
        lambda: queue.uncommit(0, "checkpoint", "parent", ["a/0/0"]),
        lambda: queue.publish(0, Published(Version(0, 1), "m", "d")),
    ):
        with pytest.raises(FencedError, match="lineage 0 was taken over by 1"):
            move()
    with pytest.raises(SetBackError, match="Redis has forgotten"):
        queue.drain(2, 1)


def test_after_a_restart_the_drained_groups_come_again_in_order(queue: Queue) -> None:
    scene = Scene(queue, POLICY)
    scene.complete(scene.lease(6))
    before = [group.task for group in scene.drain(4).groups]
    lineage = _restart(scene, 0)
    assert [group.task for group in queue.pending(lineage)] == before
    assert [group.task for group in queue.pending(lineage)] == before
    assert len(scene.drain(9).groups) == 2


def test_what_the_checkpoint_holds_is_committed_at_restart_and_not_trained_again(queue: Queue) -> None:
    scene = Scene(queue, POLICY)
    scene.complete(scene.lease(4))
    ids = [group.task for group in scene.drain(4).groups]
    queue.advance(0, 1, 2, 8.0)
    queue.advance(0, 2, 2, 8.0)
    # killed after the checkpoint of version 1 was durable and before it was committed
    lineage = _restart(scene, 1, tuple(ids[:2]))
    assert queue.audit().trained == 2
    assert [group.task for group in queue.pending(lineage)] == ids[2:]
    assert (queue.status().learner, queue.status().uncommitted) == (Version(1, 1), 0)


def test_the_checkpoint_is_believed_even_where_redis_forgot_the_completion(queue: Queue) -> None:
    scene = Scene(queue, POLICY, prompts=3)
    scene.lease(1)
    _restart(scene, 1, ("a/0/0", "a/0/1"))
    assert queue.audit().trained == 2
    scene.publish(1)
    assert [task.id for task in scene.lease(9)] == ["a/0/2"]


def test_the_checkpoint_is_believed_even_where_redis_forgot_the_admission(queue: Queue) -> None:
    scene = Scene(queue, POLICY, prompts=0)
    _restart(scene, 1, ("a/0/1",))
    scene.publish(1)
    scene.submit("a", 3)
    assert [task.id for task in scene.lease(9)] == ["a/0/0", "a/0/2"]
    assert queue.audit().trained == 1


def test_abandoned_weights_are_unpublished_and_their_work_goes_back(queue: Queue) -> None:
    scene = Scene(queue, POLICY, prompts=20)
    for version in (1, 2, 3):
        queue.advance(0, version, 0, 8.0)
    scene.publish(3)
    drained, ready, flying = scene.lease(1), scene.lease(1), scene.lease(1)
    scene.complete(drained)
    assert len(scene.drain(1).groups) == 1
    scene.complete(ready)

    lineage = _restart(scene, 1)
    assert queue.published() is None
    assert scene.lease(9) == ()
    assert queue.pending(lineage) == ()
    assert scene.drain(9).abandoned == 1
    assert scene.count("abandoned") == 2
    assert queue.renew("w1", [flying[0].id], 3) == [flying[0].id]

    scene.publish(1)
    behind = scene.leased(1, "w9", version=Version(0, 3))
    assert behind.abandoned
    assert behind.tasks[0].min_pv <= 1
    scene.version = Version(0, 3)
    assert scene.complete(flying) == [Outcome.late]
    scene.version = Version(lineage, 1)
    assert not scene.leased(1, "w10", version=Version(0, 1)).abandoned


def test_a_tag_from_before_the_restart_asks_for_no_version_that_is_gone(queue: Queue) -> None:
    scene = Scene(queue, QueuePolicy(s=0, batch=2, pace=False))
    for version in (1, 2, 3):
        queue.advance(0, version, 0, 8.0)
        scene.publish(version)
    assert queue.status().tasks > 0
    _restart(scene, 1)
    scene.publish(1)
    assert {task.min_pv for task in scene.lease(9)} == {1}


def test_the_pointer_only_moves_forward(queue: Queue) -> None:
    scene = Scene(queue, POLICY)
    for version in (1, 2):
        queue.advance(0, version, 0, 8.0)
    assert queue.publish(0, Published(Version(0, 2), "two", "d"))
    assert not queue.publish(0, Published(Version(0, 2), "two", "d"))
    assert not queue.publish(0, Published(Version(0, 1), "one", "d"))
    assert queue.published() == Published(Version(0, 2), "two", "d")
    with pytest.raises(ValueError, match="lineage 0 cannot publish"):
        queue.publish(0, Published(Version(1, 3), "m", "d"))
    scene.check()


def test_only_todays_learner_says_whom_to_trust(queue: Queue) -> None:
    scene = Scene(queue, POLICY)
    assert queue.trust() is None
    ours, others = Trust("ab" * 32, b"tokens", b"chunks"), Trust("cd" * 32, b"t", b"c")
    queue.entrust(0, others)
    lineage = _restart(scene, 0)
    queue.entrust(lineage, ours)
    with pytest.raises(FencedError):
        queue.entrust(0, others)
    assert queue.trust() == ours
    assert "tokens" not in repr(ours)


def test_advancing_again_changes_nothing(queue: Queue) -> None:
    Scene(queue, POLICY)
    queue.advance(0, 1, 2, 3.0)
    queue.advance(0, 1, 2, 5.0)
    status = queue.status()
    assert (status.learner.number, status.uncommitted, status.window) == (1, 2, 3.0)
