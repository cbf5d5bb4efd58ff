"""One controller leads a fleet at a time, its plan outlives it, and workers hear its orders with their heartbeats."""

import pytest

from echo_queue.errors import FencedError, ServiceError
from echo_queue.queue import FleetQueue, Heartbeat, WorkerOrder
from tests.queue.clients import Clients
from tests.queue.queue_harness import QueueHarness, let_pass

LONG_S = 60.0


def hears(queue: Clients, worker: str) -> WorkerOrder | None:
    return queue.heartbeat(worker, Heartbeat("engine", queue.status().learner, "idle"), every_s=60.0)


def two(queue: Clients) -> tuple[FleetQueue, FleetQueue]:
    QueueHarness(queue, prompts=0)
    return queue.controller("c1"), queue.controller("c2")


def test_one_controller_leads_until_its_time_is_up_and_its_successor_gets_its_plan(queue: Clients) -> None:
    first, second = two(queue)
    assert first.lead(0.05).number == 1
    first.plan(b"start one", {"spot": 3})
    assert second.lead(LONG_S).number == 0 or queue.fleet().leader == "c2"
    let_pass(queue, 0.06)
    term = second.lead(LONG_S)
    assert (term.number, term.leader, term.plan) == (2, "c2", b"start one")
    assert (first.lead(LONG_S).number, first.lead(LONG_S).leader) == (0, "c2")
    second.resign()
    assert first.lead(LONG_S).number == 3


def test_a_controller_that_was_deposed_neither_plans_nor_orders(queue: Clients) -> None:
    first, second = two(queue)
    first.lead(0.0)
    assert second.lead(LONG_S).number == 2
    for act in (
        lambda: first.plan(b"", {}),
        lambda: first.order(WorkerOrder("leave"), ["w1"]),
        first.resign,
    ):
        with pytest.raises(FencedError, match="c2 does"):
            act()
    assert hears(queue, "w1") is None
    assert second.lead(LONG_S).number == 2


def test_a_server_that_was_set_back_takes_no_orders_of_another_leader_with_the_same_number(queue: Clients) -> None:
    first, second = two(queue)
    before = queue.client.hgetall(queue.keys.fleet)
    assert first.lead(LONG_S).number == 1
    queue.client.delete(queue.keys.fleet)
    assert not before
    assert second.lead(LONG_S).number == 1
    with pytest.raises(FencedError):
        first.order(WorkerOrder("leave"), ["w1"])


def test_a_worker_hears_its_order_with_each_heartbeat_and_no_other_workers(queue: Clients) -> None:
    first, _ = two(queue)
    first.lead(LONG_S)
    first.order(WorkerOrder("rest"), ["w1", "w2"])
    assert [hears(queue, worker) for worker in ("w1", "w2", "w3")] == [WorkerOrder("rest"), WorkerOrder("rest"), None]
    first.order(WorkerOrder("leave", 12.5), ["w1"])
    assert [hears(queue, "w1"), hears(queue, "w1")] == [WorkerOrder("leave", 12.5)] * 2
    assert queue.client.pttl(queue.keys.order("w1")) > 0, "it does not stay for ever"


def test_what_is_no_order_is_refused(queue: Clients) -> None:
    first, _ = two(queue)
    first.lead(LONG_S)
    with pytest.raises(ServiceError, match="no order"):
        first.order(WorkerOrder("dance"), ["w1"])  # type: ignore[arg-type]


def test_anyone_may_look_and_pause(queue: Clients) -> None:
    first, second = two(queue)
    assert queue.fleet().leader == ""
    first.lead(LONG_S)
    first.plan(b"", {"spot": 3, "rest": 1})
    second.pause(paused=True)
    assert first.lead(LONG_S).paused
    fleet = queue.fleet()
    assert (fleet.leader, fleet.paused, fleet.wanted) == ("c1", True, {"rest": 1, "spot": 3})
    assert 0 < fleet.leads_ms <= 1000 * LONG_S
    second.pause(paused=False)
    assert not first.lead(LONG_S).paused
