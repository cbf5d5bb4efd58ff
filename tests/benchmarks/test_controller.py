"""The benchmark of a live controller: its market, what is seen and judged, and a short run of it."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.controller.__main__ import Period, Row, targets
from benchmarks.controller.disturbances import KINDS
from benchmarks.controller.market import Market
from benchmarks.controller.offers import CHEAPEST, MACHINES, MOST, POOLS_USD, TRAIN_S, USD, optimum_usd
from benchmarks.controller.trial import Trial, Update, begun
from benchmarks.controller.watch import Seen, Watch
from echo_queue.fleet.demand import Demand
from echo_queue.fleet.state import Decision, Dismissal, Ending, Machine, Memory, Start, State
from echo_queue.fleet.turn import ControllerTurn
from tests.processes import state_of
from tests.waiting import wait_until

LATE_S = 0.2
GOOD = Row(
    "a price spike",
    before=Period(0.98, 3.0, 0.05),
    alone=Period(0.98, 12.0, 0.07),
    controlled=Period(0.97, 3.7, 0.05),
    optimum_usd_per_hour=3.7,
    machines={"fast": 1, "rest": 1},
    reversals=1,
    looks=900,
    caps_exceeded=0,
    orders=5,
    late_share=0.01,
    identity=True,
)


@pytest.fixture
def market(tmp_path: Path) -> Iterator[Market]:
    found = Market(tmp_path, lambda name, pool: ("/bin/sleep", "1000"), USD)
    yield found
    found.close()


def test_a_disturbance_that_is_mended_keeps_every_promise_and_each_miss_is_said() -> None:
    assert all(targets([GOOD]).values()) and len(targets([GOOD])) == 6
    worse = (
        replace(GOOD, controlled=replace(GOOD.controlled, busy=0.94)),
        replace(GOOD, optimum_usd_per_hour=3.5),
        replace(GOOD, reversals=2),
        replace(GOOD, caps_exceeded=1),
        replace(GOOD, controlled=replace(GOOD.controlled, usd_per_update=0.07)),
        replace(GOOD, identity=False),
    )
    for number, row in enumerate(worse):
        assert [place for place, kept in enumerate(targets([row]).values()) if not kept] == [number]


def test_a_pool_that_is_withdrawn_loses_its_machines_and_refuses_others(market: Market) -> None:
    assert market.start("a", CHEAPEST) and market.start("b", "fast")
    wait_until(lambda: sorted(market.rented()) == ["fast", CHEAPEST], "two machines")
    market.withdraw(CHEAPEST)
    wait_until(lambda: list(market.rented()) == ["fast"], "the other one")
    assert not market.start("c", CHEAPEST)
    assert market.offers()[CHEAPEST].usd_per_hour == USD[CHEAPEST], "it says so only at a start"


def test_a_machine_that_is_frozen_is_paid_for_until_it_is_killed(market: Market) -> None:
    market.start("a", CHEAPEST)
    wait_until(lambda: list(market.rented()) == [CHEAPEST], "a machine")
    market.freeze("a")
    market.end(["a"])
    assert list(market.rented()) == [CHEAPEST]
    market.close()
    wait_until(lambda: not list(market.rented()), "its end")


def test_a_machine_is_frozen_once_it_has_stopped_however_late_that_is(
    market: Market, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that was told to stop and to end, and did neither yet, ends."""
    market.start("a", CHEAPEST)
    send = os.killpg

    def busy_machine(group: int, number: int) -> None:
        if number == signal.SIGSTOP:
            threading.Timer(LATE_S, send, (group, number)).start()
        else:
            send(group, number)

    monkeypatch.setattr(os, "killpg", busy_machine)
    market.freeze("a")
    market.end(["a"])
    (lock,) = market.folder.glob("*/a/lock")
    wait_until(lambda: state_of(int(lock.read_text())) in {"T", "Z", ""}, "its end, or that it stands still")
    assert list(market.rented()) == [CHEAPEST]


def test_the_caps_leave_room_for_the_best_set_of_each_disturbance() -> None:
    spiked = optimum_usd(TRAIN_S, {**USD, CHEAPEST: 4 * USD[CHEAPEST]})
    assert optimum_usd(TRAIN_S, USD) < spiked == optimum_usd(TRAIN_S, {pool: USD[pool] for pool in ("fast", "rest")})
    assert optimum_usd(TRAIN_S / 2, USD) < POOLS_USD


@pytest.mark.parametrize(
    ("machines", "usd", "within"),
    [
        ({"spot": 4, "fast": 1}, POOLS_USD, True),
        ({"spot": 4, "fast": 1}, POOLS_USD + 0.1, False),
        ({"spot": MOST["spot"] + 1}, 1.0, False),
        ({"spot": MACHINES - 1, "fast": 2}, 1.0, False),
    ],
)
def test_each_cap_is_looked_at(machines: dict[str, int], usd: float, within: bool) -> None:
    assert Seen(0.0, machines, usd).within_caps == within


def test_a_pool_that_grows_and_shrinks_again_was_reversed_once() -> None:
    spot = Machine("a", "spot")
    dismissed = Memory(dismissals={"a": Dismissal(Ending.rest, 0.0)})
    turns = [turn(Start("a", "spot")), turn(machine=spot), turn(machine=spot, memory=dismissed)]
    watch = Watch(turns=list(enumerate([*turns, turns[-1]])))
    assert watch.reversals(0.0) == 1
    assert watch.reversals(1.0) == 0, "what came before does not count"


def test_the_learner_is_as_busy_as_its_updates_say() -> None:
    trial = Trial(None, None, None, {}, [Update(10.0, 4.0), Update(15.0, 4.0), Update(20.0, 4.0)])  # type: ignore[arg-type]
    assert trial.busy(6.0, 20.0) == pytest.approx(12 / 14)
    assert trial.busy(8.0, 18.0) == pytest.approx((2 + 4 + 2) / 10)
    assert trial.busy(30.0, 40.0) == 0


@pytest.mark.proof(kind="benchmarks", share=0.15)
def test_a_live_fleet_serves_and_can_be_disturbed() -> None:
    with begun(1) as (trial, watch):
        trial.go_on(3 * TRAIN_S)
        KINDS["a lying worker"](trial)
        trial.go_on(2 * TRAIN_S)
        now_s = time.monotonic()
        assert 0 < trial.busy(0.0, now_s) <= 1
        assert watch.usd_per_hour(now_s - 5, now_s) == pytest.approx(3 * USD[CHEAPEST])
        assert all(one.within_caps for one in watch.seen) and watch.turns
        assert max(worker.rate or 0.0 for worker in watch.turns[-1][1].state.workers) > 4


def turn(*orders: Start, machine: Machine | None = None, memory: Memory = Memory()) -> ControllerTurn:  # noqa: B008
    state = State((machine,) if machine else (), (), needed=1.0, made=None, starved=False)
    return ControllerTurn(Decision(orders, memory, {}, ""), Demand(1.0, 0.97, ()), state)
