"""The lease keeper between a real queue and a real engine."""

import threading
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from echo_queue import failpoints
from echo_queue.records import NOTHING, PartialGroup, PartialSample, Span, Version
from tests.queue.clients import Clients
from tests.workers.worker_harness import WorkerHarness, tensors_of
from workers import engines
from workers.environments.protocol import Spent
from workers.held_leases import HeldLeases
from workers.lease_keeper import GroupRate, LeaseKeeper, Place, Scoring

Begin = Callable[..., WorkerHarness]
BASE = Version(0, 0)


def begun(task: str, lineage: int, tokens: int) -> PartialGroup:
    """A partial rollout with so many tokens of its first sample."""
    first = PartialSample(np.arange(tokens, dtype=np.int32), np.full(tokens, -1.0, np.float32), (Span(0, 0),))
    return PartialGroup(task, lineage, (first, NOTHING, NOTHING))


def heart_of(run: WorkerHarness, folder: Path, queue: Clients, held: HeldLeases) -> LeaseKeeper:
    engine = engines.create(run.config, str(folder), BASE, [])
    return LeaseKeeper(
        queue,
        "w1",
        engine,
        held,
        every_s=0.1,
        accepted=lambda: 0,
        generation_s=tuple,
        scoring=lambda: Scoring(1.5, 3, Spent(40, 9_000)),
        fetched={},
        place=Place("spot", "node-7"),
        obey=lambda order: None,
    )


def test_a_task_that_nobody_wants_any_more_is_dropped(harness: Begin, folder: Path) -> None:
    run = harness()
    run.begin(["1", "2"], tensors_of(folder))
    queue, held = Clients.connected_as(run.config, "worker"), HeldLeases()
    tasks = queue.lease("w1", BASE, 2).tasks
    held.add(tasks, 0)
    lease_keeper = heart_of(run, folder, queue, held)
    lease_keeper.start()
    run.queue.bury(tasks[0].id, "not wanted")
    run.until(lambda: held.tasks() == [tasks[1]], "the first task's loss")
    assert not held.holds(tasks[0]) and held.holds(tasks[1])
    lease_keeper.check()
    lease_keeper.close()


class Between:
    """The client of a worker, which calls `act` once, between the server's answer to `move` and its return."""

    def __init__(self, queue: Clients, move: str, act: Callable[[], None]) -> None:
        self._queue, self._move, self._act = queue, move, act
        self.acted = threading.Event()

    def __getattr__(self, name: str) -> Any:
        return self._call if name == self._move else getattr(self._queue, name)

    def _call(self, *words: Any) -> Any:
        answer = getattr(self._queue, self._move)(*words)
        if not self.acted.is_set():
            self._act()
            self.acted.set()
        return answer


def test_the_answer_about_an_earlier_lease_ends_no_newer_one_of_the_same_task(harness: Begin, folder: Path) -> None:
    run = harness(staleness={"s": 0}, telemetry={"heartbeat_s": 0.1})
    run.begin(["1"], tensors_of(folder))
    queue, held = Clients.connected_as(run.config, "worker"), HeldLeases()
    first = queue.lease("w1", BASE, 1).tasks
    held.add(first, 0)
    run.queue.advance(run.lineage, 1, 0, 1.0)  # cancels what is in flight

    def lease_anew() -> None:
        held.add(queue.lease("w1", Version(run.lineage, 1), 1).tasks, 1)

    between = Between(queue, "renew", lease_anew)
    lease_keeper = heart_of(run, folder, cast(Clients, between), held)
    lease_keeper.start()
    assert between.acted.wait(60.0)
    lease_keeper.close()
    lease_keeper.check()
    (again,) = held.tasks()
    assert again.id == first[0].id and again.entry != first[0].entry
    assert not held.holds(first[0])


def test_a_lease_lasts_as_long_as_the_heart_beats(harness: Begin, folder: Path) -> None:
    run = harness(telemetry={"heartbeat_s": 0.1})
    run.begin(["1"], tensors_of(folder))
    queue, held = Clients.connected_as(run.config, "worker"), HeldLeases()
    held.add(queue.lease("w1", BASE, 1).tasks, 0)
    lease_keeper = heart_of(run, folder, queue, held)
    lease_keeper.start()
    ends_ms = [0.0]

    def begun_anew() -> bool:
        assert run.queue.reclaim().expired == 0
        ends_ms.extend(score for _, score in run.queue.client.zrange(queue.keys.leases, 0, -1, withscores=True))
        return sum(later > earlier for earlier, later in pairwise(ends_ms)) >= 5

    run.until(begun_anew, "five renewals")
    lease_keeper.close()
    run.end_leases()


def test_partials_that_were_noted_are_stored_for_the_next_worker(harness: Begin, folder: Path) -> None:
    run = harness(telemetry={"heartbeat_s": 0.1})
    run.begin(["1"], tensors_of(folder))
    queue, held = Clients.connected_as(run.config, "worker", run.store), HeldLeases()
    (task,) = queue.lease("w1", BASE, 1).tasks
    held.add([task], 0)
    lease_keeper = heart_of(run, folder, queue, held)
    lease_keeper.start()
    other = replace(task, id="p/0/7")
    held.note_partials([(one, begun(one.id, run.lineage, 2)) for one in (task, other)])
    run.until(
        lambda: run.queue.client.hlen(run.queue.keys.partials) == 1, "the partial rollout of the task that is held"
    )
    lease_keeper.close()
    run.end_leases()
    found = queue.lease("w2", BASE, 1).partials
    assert [len(one.samples) for one in found.values()] == [3] and list(found) == [task.id]


def test_a_partial_rollout_that_cannot_be_stored_costs_only_itself_and_is_told_once(
    harness: Begin, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = harness(queue={"group_max_bytes": 65_536})
    run.begin(["1", "2"], tensors_of(folder))
    queue, held = Clients.connected_as(run.config, "worker"), HeldLeases()
    large, small = queue.lease("w1", BASE, 2).tasks
    held.add([large, small], 0)
    lease_keeper = heart_of(run, folder, queue, held)
    for tokens in (2, 4):
        held.note_partials(
            [(large, begun(large.id, run.lineage, 100_000)), (small, begun(small.id, run.lineage, tokens))]
        )
        lease_keeper.store_partials()
    assert held.tasks() == sorted([large, small], key=lambda task: task.id)
    assert caplog.text.count(f"the partial rollout of task {large.id} cannot be stored any") == 1
    lease_keeper.hand_back()
    assert run.queue.reclaim().released == 2
    assert {task: len(one.samples[0].tokens) for task, one in queue.lease("w2", BASE, 2).partials.items()} == {
        small.id: 4
    }


class SlowCall:
    """A server that takes the lease keeper's first `progress` only once another thread's came in, or after a while."""

    def __init__(self) -> None:
        self.begun, self.overtaken = threading.Event(), threading.Event()

    def before(self, step: str, about: object) -> None:
        if step == "progress" and threading.current_thread().name == "lease keeper":
            self.begun.set()
            self.overtaken.wait(1.0)

    def after(self, step: str, about: object, answer: object) -> None:
        if step == "progress" and threading.current_thread().name != "lease keeper":
            self.overtaken.set()


def test_what_a_leaving_worker_stores_is_not_replaced_by_an_older_call_that_is_under_way(
    harness: Begin, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = harness(queue={"lease_s": 60.0}, telemetry={"heartbeat_s": 0.1})
    run.begin(["1"], tensors_of(folder))
    queue, held = Clients.connected_as(run.config, "worker", run.store), HeldLeases()
    (task,) = queue.lease("w1", BASE, 1).tasks
    held.add([task], 0)
    lease_keeper = heart_of(run, folder, queue, held)
    slow = SlowCall()
    monkeypatch.setattr(failpoints, "observer", slow)
    held.note_partials([(task, begun(task.id, run.lineage, 2))])
    lease_keeper.start()
    assert slow.begun.wait(60.0)
    held.note_partials([(task, begun(task.id, run.lineage, 9))])
    lease_keeper.store_partials()
    lease_keeper.hand_back()
    lease_keeper.close()
    lease_keeper.check()
    assert run.queue.reclaim().released == 1
    (found,) = queue.lease("w2", BASE, 1).partials.values()
    assert len(found.samples[0].tokens) == 9


def test_groups_of_minutes_have_a_rate_between_two_of_them_and_a_worker_that_stops_has_less_and_less() -> None:
    rate, seconds = GroupRate(0.0), 0.0
    for minute in range(1, 41):
        for second in range(60):
            seconds = 60.0 * minute + second
            found = rate.per_s(seconds, 2 * (minute // 4))
            assert minute < 24 or 0.8 * 2 / 240 < found <= 1.01 * 2 / 240
    assert rate.per_s(seconds + 7_200.0, 20) < 0.3 * 2 / 240
