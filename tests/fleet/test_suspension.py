"""Machines whose workers are suspended: they count for nothing and go, and no pool is rented of in vain for ever."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from echo_queue.fleet.memory_codec import decoded, encoded
from echo_queue.fleet.observation import all_busy, suspensions_of, workers_of
from echo_queue.fleet.state import End, LearnerState, Leave, Machine, Memory, Start, State, Suspension, Worker
from echo_queue.launch.servers.redis_server import RedisServer
from echo_queue.queue import Heartbeat, WorkerStatus
from echo_queue.records import Version
from tests.fleet.fleet_harness import FleetHarness, fleet_of
from tests.fleet.test_decision import CHEAP, NOW_S, decided, fleet, of
from tests.fleet.test_observation import TRAINS
from tests.queue.clients import Clients

WHY = "8 groups in a row could not be trained"
LACKING = State((), (), needed=1.0, made=1.0, starved=False, learner=LearnerState(lacks_groups=True))
BEATS = Heartbeat("none", Version(0, 0), "idle", groups_per_s=0.5, groups=8, machine="cheap-2")


def suspended(state: State, *machines: str) -> State:
    """`state` with the workers of these machines suspended; each is called like its machine."""
    workers = tuple(
        replace(one, serves=False, suspended=True) if one.machine in machines else one for one in state.workers
    )
    here = {one.name for one in state.machines}
    return replace(
        state,
        workers=workers,
        suspensions=tuple(Suspension(name, name if name in here else "", WHY) for name in machines),
    )


def test_a_machine_whose_workers_are_suspended_goes_is_replaced_and_its_reason_is_told() -> None:
    state = suspended(fleet(2.0, "cheap-1", "cheap-2"), "cheap-2")
    decision = decided(state)
    assert (of(decision, Leave), of(decision, Start)) == (["cheap-2"], ["dear"]), "its pool has had a failure"
    assert f"cheap-2 must go, for their workers are suspended: {WHY}" in decision.why
    assert decision.memory.why == decision.why and decoded(encoded(decision.memory)) == decision.memory
    gone = replace(suspended(fleet(2.0, "cheap-1", "dear-1", memory=decision.memory), "cheap-2"), machines=())
    assert decided(gone, now_s=NOW_S + 10).memory.unworthy.keys() == {"cheap-2"}, "it is remembered, for its pool"


def test_a_machine_of_several_workers_goes_only_when_none_of_them_works() -> None:
    state = suspended(fleet(1.0, "cheap-1"), "cheap-1")
    other = Worker("cheap-1", 0.0, serves=True)
    assert decided(replace(state, workers=(*state.workers, other))).orders == ()
    silent = replace(other, silent_s=1000.0)
    assert of(decided(replace(state, workers=(*state.workers, silent))), Leave) == ["cheap-1"]


def test_a_paused_fleet_keeps_suspended_machines_which_count_again_once_they_are_reinstated() -> None:
    state = suspended(fleet(1.0, "cheap-1"), "cheap-1")
    paused = decided(replace(state, paused=True))
    assert (paused.orders, paused.memory.dismissals, paused.memory.serving) == ((), {}, ())
    resumed = decided(fleet(1.0, "cheap-1", memory=paused.memory), now_s=NOW_S + 3600)
    assert (resumed.orders, resumed.memory.serving) == ((), ("cheap-1",))


def rented(memory: Memory, names: list[str], hours: float) -> Iterator[tuple[float, Memory]]:
    """Each machine of `cheap` serves, and is suspended at the next look. Yields each look's time and memory."""
    listed, workers, bad = set[str](), dict[str, Worker](), list[str]()
    for look in range(int(hours * 360)):
        now_s = NOW_S + 10.0 * look
        machines = tuple(Machine(name, name.partition("-")[0]) for name in sorted(listed))
        told = tuple(Suspension(name, name if name in listed else "", WHY) for name in bad)
        state = replace(LACKING, machines=machines, workers=tuple(workers.values()), memory=memory, suspensions=told)
        decision = decided(state, CHEAP, now_s=now_s)
        memory = decision.memory
        for name in list(workers):
            workers[name], bad = Worker(name, 0.0, serves=False, suspended=True), sorted({*bad, name})
        for order in decision.orders:
            match order:
                case Start(name):
                    names.append(name)
                    listed.add(name)
                    workers[name] = Worker(name, 0.0, serves=True)
                case Leave(name):
                    workers.pop(name, None)
                case End(name):
                    listed.discard(name)
        yield now_s, memory


def test_a_pool_whose_machines_are_suspended_one_after_another_is_not_rented_of_for_ever() -> None:
    names: list[str] = []
    *_, (now_s, memory) = rented(Memory(), names, hours=6.0)
    assert len(names) == 3
    why = f"for the workers of 3 of its machines were suspended: {WHY}"
    assert memory.why.endswith(f"pool cheap is not used until `echo-queue reinstate`, {why}")
    there = replace(LACKING, memory=memory)
    bad = tuple(Suspension(name, "", WHY) for name in names)
    assert of(decided(replace(there, suspensions=bad), now_s=now_s + 10), Start) == ["dear"], "others are"
    assert of(decided(replace(there, suspensions=bad[:2]), CHEAP, now_s=now_s + 10), Start) == ["cheap"], "reinstated"


def test_a_few_bad_machines_do_not_close_a_pool_that_serves() -> None:
    names = [f"cheap-{number}" for number in range(8)]
    first = decided(suspended(fleet(8.0, *names), *names[:3]), CHEAP)
    assert (of(first, Leave), of(first, Start)) == (names[:3], []), "a pause, as after a launch that failed"
    later = suspended(fleet(8.0, *names[3:], memory=first.memory), *names[:3])
    again = decided(later, CHEAP, now_s=NOW_S + 121)
    assert of(again, Start) == ["cheap"] * 3 and "not used" not in again.why


def test_a_suspended_worker_counts_for_nothing_and_its_machine_is_known() -> None:
    good = replace(BEATS, state="generating", machine="cheap-1")
    workers = (
        WorkerStatus("w1", 10, good, 1),
        WorkerStatus("w2", 10, BEATS, 0, WHY),
        WorkerStatus("w3", -1, None, 0, WHY),
    )
    status = replace(TRAINS, workers=workers)
    machines = [Machine("cheap-1", "cheap"), Machine("cheap-2", "cheap")]
    assert list(workers_of(status, machines)) == [
        Worker("cheap-1", 0.01, serves=True, rate=0.5),
        Worker("cheap-2", 0.01, serves=False, suspended=True),
    ]
    assert list(suspensions_of(status, machines)) == [Suspension("w2", "cheap-2", WHY), Suspension("w3", "", WHY)]
    assert all_busy(status), "who may not work keeps nobody from being busy"


@pytest.mark.slow
def test_a_controller_sends_the_machine_of_a_suspended_worker_away(
    queue: Clients, redis_server: RedisServer, tmp_path: Path
) -> None:
    harness = FleetHarness(queue, redis_server.url, tmp_path / "fleet")
    try:
        harness.trains(1.0)
        controller = harness.controller(fleet_of({"spot": 1.0, "rest": 2.0}))
        turn = harness.until(
            controller, lambda turn: len(turn.decision.memory.serving) == 3, "three machines that serve"
        )
        bad = turn.decision.memory.serving[0]
        harness.queue.suspend(harness.lineage, bad, WHY)
        turn = harness.until(
            controller,
            lambda turn: (
                len({*turn.decision.memory.serving, bad}) == 4 and bad not in {one.name for one in turn.state.machines}
            ),
            "another",
        )
        assert f"left {bad}" in harness.written() and harness.counts == {"spot": 2, "rest": 1}
        assert turn.decision.memory.unworthy[bad].workers == (bad,)
    finally:
        harness.end()
