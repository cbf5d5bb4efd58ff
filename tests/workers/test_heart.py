"""The heart of a worker between a real queue and a real engine."""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from echo_queue.errors import DeadlineError
from echo_queue.queue import Queue
from echo_queue.records import Published, Version
from tests.workers.stage import Stage, tensors_of
from workers import engines
from workers.follower import Follower
from workers.heart import Call, Heart

Begin = Callable[..., Stage]


def test_a_call_whose_tasks_nobody_wants_any_more_is_stopped(stage: Begin, folder: Path) -> None:
    run = stage()
    run.begin(["1", "2"], tensors_of(folder))
    queue = Queue.connect(run.config, "worker")
    heart = Heart(queue, "w1", engines.create(run.config, str(folder), Version(0, 0), []), every_s=0.1)
    tasks = queue.lease("w1", Version(0, 0), 2).tasks
    call = heart.call = Call(tasks, 0)
    heart.start()
    run.queue.bury(tasks[0].id, "not wanted")
    run.until(lambda: call.held == [tasks[1].id], "the first task's loss")
    assert not call.stop.is_set() and not call.holds(tasks[0]) and call.holds(tasks[1])
    run.queue.bury(tasks[1].id, "not wanted")
    run.until(call.stop.is_set, "the call's stop")
    heart.check()
    heart.close()


def test_a_lease_lasts_as_long_as_the_heart_beats(stage: Begin, folder: Path) -> None:
    run = stage(queue={"lease_s": 0.5}, telemetry={"heartbeat_s": 0.1})
    run.begin(["1"], tensors_of(folder))
    queue = Queue.connect(run.config, "worker")
    heart = Heart(queue, "w1", engines.create(run.config, str(folder), Version(0, 0), []), every_s=0.1)
    heart.call = Call(queue.lease("w1", Version(0, 0), 1).tasks, 0)
    heart.start()
    beats = threading.Event()
    for _ in range(15):
        beats.wait(0.1)
        assert run.queue.reclaim().expired == 0
    heart.close()
    run.until(lambda: run.queue.reclaim().expired == 1, "the lease's end")


def test_a_wait_for_weights_ends_with_what_it_waited_for_and_why(stage: Begin, folder: Path) -> None:
    run = stage()
    run.begin(["1"], tensors_of(folder))

    def fetch(published: Published) -> dict[str, object]:
        raise OSError("no route to the store")

    follower = Follower(Queue.connect(run.config, "worker"), fetch, Version(0, 0))  # type: ignore[arg-type]
    follower.start()
    with pytest.raises(DeadlineError, match=r"version 1\.0 or newer did not arrive .*no route to the store"):
        follower.wait_for(Version(1, 0), deadline_s=1.0, leaving=threading.Event())
    follower.close()


def test_a_restarted_learners_weights_end_a_wait_for_its_forerunners(stage: Begin, folder: Path) -> None:
    run = stage()
    run.begin(["1"], tensors_of(folder))
    follower = Follower(Queue.connect(run.config, "worker"), lambda published: {}, Version(1, 0))
    follower.start()
    run.lineage = run.queue.resume().lineage
    run.publish(0, tensors_of(folder))
    staged = follower.wait_for(Version(1, 5), deadline_s=20.0, leaving=threading.Event())
    assert staged is not None and staged.version == Version(run.lineage, 0)
    follower.close()
