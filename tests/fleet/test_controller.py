"""Controllers over a real queue and real processes: they keep to the demand, and nothing is started or ended twice."""

import json
import logging
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import redis

from echo_queue import failpoints
from echo_queue.errors import Problem
from echo_queue.fleet import controller as controller_module
from echo_queue.fleet.drivers import DriverError, LocalDriver
from echo_queue.fleet.memory_codec import decoded, encoded
from echo_queue.fleet.state import Dismissal, Ending, Launch, Memory, Setback, Start
from echo_queue.launch.servers.redis_server import RedisServer
from echo_queue.queue import Caller, FleetQueue, Heartbeat, Monitor
from echo_queue.records import Version
from tests.fleet.fleet_harness import FleetHarness, fleet_of
from tests.killer import Killed, Killer
from tests.queue.clients import Clients
from tests.waiting import wait_until

TWO_POOLS = {"spot": 1.0, "rest": 2.0}


@pytest.fixture
def harness(queue: Clients, redis_server: RedisServer, tmp_path: Path) -> Iterator[FleetHarness]:
    found = FleetHarness(queue, redis_server.url, tmp_path / "fleet")
    yield found
    found.end()


@pytest.mark.slow
def test_a_controller_follows_the_demand_and_dismisses_through_the_queue(harness: FleetHarness) -> None:
    fleet = fleet_of(TWO_POOLS, rest_s=600)
    controller = harness.controller(fleet)
    harness.trains(1.0)
    harness.until(controller, lambda turn: len(turn.decision.memory.serving) == 3, "three machines that serve")
    assert harness.counts == {"spot": 3}
    harness.trains(0.5)
    harness.until(controller, lambda turn: len(turn.decision.memory.serving) == 5, "five for twice the demand")
    harness.trains(2.0)
    harness.until(controller, lambda turn: len(turn.state.machines) == 2, "two that are left")
    began, left = (
        [line.split()[1] for line in harness.written() if line.startswith(word)] for word in ("began", "left")
    )
    assert len(began) == len(set(began)) == 5
    assert len(left) == len(set(left)) == 3
    assert not set(left) & {machine.name for machine in harness.driver.machines()}, "who left is ended, and nobody else"
    assert harness.queue.fleet().wanted == {"spot": 2}


@pytest.mark.slow
def test_a_cheaper_pool_takes_over_only_once_it_serves(harness: FleetHarness) -> None:
    harness.trains(1.0)
    first = harness.controller(fleet_of(TWO_POOLS), name="c1")
    harness.until(first, lambda turn: len(turn.decision.memory.serving) == 3, "three machines that serve")
    swapping = harness.controller(fleet_of({"spot": 4.0, "rest": 2.0}), name="c1")
    least: list[int] = []

    def swapped() -> bool:
        harness.queue.reclaim()
        turn = swapping.turn()
        least.append(len(turn.decision.memory.serving) if turn else 3)
        return harness.counts == {"rest": 3}

    wait_until(swapped, "the other pool", told=lambda: str(harness.written()))
    assert min(least) >= 3


def test_of_two_controllers_one_leads_and_the_other_starts_nothing(harness: FleetHarness) -> None:
    harness.trains(1.0)
    fleet = fleet_of(TWO_POOLS)
    first, second = harness.controller(fleet), harness.controller(fleet, harness.new_driver())
    for _ in range(3):
        assert first.turn() is not None
        assert second.turn() is None
    assert harness.counts == {"spot": 3}


def test_a_controller_may_die_after_each_of_its_steps_and_nothing_is_started_twice(
    queue: Clients, tmp_path: Path
) -> None:
    """Its machines go on; its successor repeats what was under way by the same names."""
    harness, fleet = FleetHarness(queue, "", tmp_path / "fleet"), fleet_of({"spot": 1.0})
    harness.trains(1.0)
    struck = ["nothing"]
    while struck[-1]:
        folder = tmp_path / f"machines-{len(struck)}"
        driver = LocalDriver(folder, lambda name, pool: ("/bin/sleep", "1000"), grace_s=0.0)
        queue.client.delete(queue.keys.fleet)
        failpoints.observer = killer = Killer(len(struck))
        with suppress(Killed):
            harness.controller(fleet, driver).turn()
        failpoints.observer = None
        queue.client.hset(queue.keys.fleet, "until_ms", 0)  # its lead is up
        successor = harness.controller(fleet, driver)
        assert successor.turn() and successor.turn()
        used = {path.parent.name for path in folder.glob("*/*/lock")}
        listed = [machine.name for machine in driver.machines()]
        driver.end(listed)
        assert sorted(used) == sorted(listed) and len(listed) == 3, f"after {killer.struck}"
        struck.append(killer.struck)
    assert {"lead", "plan", "start machine"} <= set(struck)


def test_a_controller_that_was_deposed_in_the_middle_of_a_turn_does_nothing(harness: FleetHarness) -> None:
    harness.trains(1.0)
    first = harness.controller(fleet_of(TWO_POOLS))

    class Deposing(LocalDriver):
        def machines(self):  # type: ignore[no-untyped-def]
            harness.queue.client.hset(harness.queue.keys.fleet, "until_ms", 0)
            harness.queue.controller("other").lead(60.0)
            return super().machines()

    driver = Deposing(harness.folder / "machines", lambda name, pool: ("/bin/sleep", "1000"), grace_s=0.0)
    first = harness.controller(fleet_of(TWO_POOLS), driver)
    assert first.turn() is None
    assert harness.counts == {}


def test_nothing_is_ordered_while_redis_the_driver_or_the_learner_is_away(
    harness: FleetHarness, caplog: pytest.LogCaptureFixture
) -> None:
    fleet = fleet_of(TWO_POOLS)
    away = Caller(redis.Redis(port=1, socket_timeout=0.1), "run", deadline_s=0.1)
    assert controller_module.Controller(
        fleet, FleetQueue(away), Monitor(away), harness.driver, act=True
    ).turn() is None  # fmt: skip

    class Throttled(LocalDriver):
        def machines(self):  # type: ignore[no-untyped-def]
            raise DriverError(Problem("cloud", "throttled", "wait"))

    harness.trains(1.0)
    throttled = Throttled(harness.folder, lambda name, pool: (), grace_s=0.0)
    assert harness.controller(fleet, throttled, name="c1").turn() is None
    assert [record.message for record in caplog.records if "stays as it is" in record.message]
    harness.queue.client.hset(harness.queue.keys.state, "swept_ms", 1)
    silent = harness.controller(fleet, name="c1").turn()
    assert silent and silent.decision.orders == () and "no learner" in silent.decision.why
    assert harness.counts == {}
    assert "no learner" in harness.queue.fleet().why, "it stands in Redis as well"


def test_without_act_nobody_leads_and_nothing_is_sent_but_everything_is_said(
    harness: FleetHarness, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    harness.trains(1.0)
    turn = harness.controller(fleet_of(TWO_POOLS), act=False, as_json=True).turn()
    assert turn and [order.pool for order in turn.decision.orders if isinstance(order, Start)] == ["spot"] * 3
    assert (harness.counts, harness.queue.fleet().leader) == ({}, "")
    said = json.loads(next(record.message for record in caplog.records if record.message.startswith("{")))
    assert said["wanted"] == {"spot": 3} and said["needed"] > 2
    assert said["offers"]["spot"][:2] == [1.0, 1.0] and said["acts"] is False
    caplog.clear()
    harness.controller(fleet_of(TWO_POOLS), act=False).turn()
    (line,) = [record.message for record in caplog.records]
    assert line.startswith("would start 3 spot: the supply does not suffice; machines: none for 0.00 USD an hour")
    assert "groups per second" in line and "{" not in line


def test_a_budget_that_is_spent_ends_the_machines_of_a_silent_learner(harness: FleetHarness) -> None:
    harness.trains(1.0)
    controller = harness.controller(fleet_of(TWO_POOLS, usd=1000.0), name="c1")
    assert controller.turn() and harness.counts == {"spot": 3}
    harness.queue.client.hset(harness.queue.keys.state, "swept_ms", 1)
    spent = harness.controller(fleet_of(TWO_POOLS, usd=0.000001), name="c1").turn()
    assert spent and spent.decision.why == "the budget is spent"
    assert {order.name for order in spent.decision.orders} == {machine.name for machine in spent.state.machines}


def test_the_leader_ends_the_machines_that_it_knows_where_redis_stays_away(
    harness: FleetHarness, caplog: pytest.LogCaptureFixture
) -> None:
    harness.trains(1.0)
    leads = harness.controller(fleet_of(TWO_POOLS, redis_away_s=600.0))
    assert leads.turn() and harness.counts == {"spot": 3}
    away = Caller(redis.Redis(port=1, socket_timeout=0.1), "run", deadline_s=0.1)
    leads._queue = FleetQueue(away)
    assert leads.turn() is None and harness.counts == {"spot": 3}, "it is away, and not yet for long"
    leads._answered_s -= 601.0

    def all_end() -> bool:
        return leads.turn() is None and not harness.counts

    wait_until(all_end, "the end of all machines")
    assert "ends its 3 machines, for Redis has not answered for 10 min" in caplog.text
    other = harness.controller(fleet_of(TWO_POOLS, redis_away_s=600.0))
    assert other._known == frozenset(), "one that never led knows of none"


def test_a_paused_fleet_is_left_as_it_is_until_it_is_resumed(harness: FleetHarness) -> None:
    harness.trains(1.0)
    controller = harness.controller(fleet_of(TWO_POOLS))
    harness.queue.controller("a person").pause(paused=True)
    turn = controller.turn()
    assert turn and turn.decision.why == "it is paused" and harness.counts == {}
    harness.queue.controller("a person").pause(paused=False)
    assert controller.turn() and harness.counts == {"spot": 3}


@pytest.mark.slow
def test_a_finished_run_needs_no_machine(harness: FleetHarness) -> None:
    harness.trains(1.0)
    controller = harness.controller(fleet_of(TWO_POOLS))
    harness.until(controller, lambda turn: len(turn.decision.memory.serving) == 3, "three machines that serve")
    harness.queue.finish(harness.lineage, force=True)
    harness.until(controller, lambda turn: not turn.state.machines, "their end")
    assert sum(line.startswith("left") for line in harness.written()) == 3


@pytest.mark.slow
def test_what_is_not_wanted_is_ended_though_nothing_can_be_started(harness: FleetHarness) -> None:
    class Broken(LocalDriver):
        def start(self, name: str, pool: str) -> bool:
            raise DriverError(Problem("cloud", "no such image", "build it"))

    harness.trains(1.0)
    controller = harness.controller(fleet_of(TWO_POOLS), name="c1")
    harness.until(controller, lambda turn: len(turn.decision.memory.serving) == 3, "three machines that serve")
    lost = Memory(dismissals={harness.driver.machines()[0].name: Dismissal(Ending.end, 0.0)})
    harness.queue.controller("c1").lead(60.0)
    broken = Broken(harness.folder / "machines", lambda name, pool: (), grace_s=5.0)
    successor = harness.controller(fleet_of(TWO_POOLS), broken, name="c1")
    harness.queue.client.hset(harness.queue.keys.fleet, "plan", encoded(lost))
    assert successor.turn() is None, "a start failed"
    wait_until(lambda: len(harness.driver.machines()) == 2, "the end of one")


def test_a_memory_comes_back_as_it_was_noted_and_another_is_refused() -> None:
    memory = Memory(
        launches={"a": Launch("spot", 1.5, confirmed=True)},
        dismissals={"b": Dismissal(Ending.rest, 2.5)},
        setbacks={"spot": Setback(2, 3.5)},
        doubted=frozenset({"c", "b"}),
        serving=("b", "c"),
        saving_s=4.5,
    )
    assert decoded(encoded(memory)) == memory
    assert decoded(b"") == Memory()
    assert decoded(b'{"launches": 1}') is None


def test_a_worker_that_names_its_machine_is_one_of_it(harness: FleetHarness) -> None:
    harness.trains(1.0)
    driver = LocalDriver(harness.folder / "machines", lambda name, pool: ("/bin/sleep", "1000"), grace_s=0.0)
    controller = harness.controller(fleet_of(TWO_POOLS), driver)
    controller.turn()
    (first, *_) = [machine.name for machine in driver.machines()]
    for number in (1, 2):
        beat = Heartbeat("none", Version(0, 0), "generating", 1.0, 0.5, 1, pool="spot", machine=first)
        harness.queue.heartbeat(f"gpu-{number}", beat, every_s=60.0)
    turn = controller.turn()
    assert turn and turn.decision.memory.serving == (first,)
    assert [worker.rate for worker in turn.state.workers] == [0.5, 0.5]
