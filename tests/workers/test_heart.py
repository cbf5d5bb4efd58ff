"""The heart of a worker between a real queue and a real engine."""

import threading
from collections.abc import Callable
from pathlib import Path

from echo_queue.queue import Queue
from echo_queue.records import Version
from tests.workers.stage import Stage, tensors_of
from workers import engines
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
