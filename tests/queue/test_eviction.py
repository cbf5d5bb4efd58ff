"""Workers that will not come back hold nothing any more, are shown no more, and are offered nothing."""

from echo_queue.queue import Heartbeat, WorkerOrder
from tests.queue.clients import Clients
from tests.queue.queue_harness import QueueHarness


def test_what_evicted_workers_hold_comes_back_at_once_and_costs_no_attempt(queue: Clients) -> None:
    """One of them has a task that came back before, so that it lies in the other stream."""
    harness = QueueHarness(queue, prompts=4)
    (failing, fresh), (other, again) = harness.lease(2, "gone-1"), harness.lease(2, "on")
    queue.release("on", [again.id])
    queue.reclaim()
    assert [task.id for task in harness.lease(1, "gone-2")] == [again.id]
    queue.fail("gone-1", failing.id, "it breaks")
    assert [queue.evict("gone-"), queue.evict("gone-")] == [2, 2], "it can be told again"
    assert queue.renew("gone-1", {fresh.id: 0}) == [fresh.id]
    swept = queue.reclaim()
    assert (swept.released, swept.failed, swept.expired) == (2, 1, 0)
    tasks = {task.id: task.attempt for task in harness.lease(4, "next")}
    assert tasks == {failing.id: 1, fresh.id: 0, again.id: 0}, "only the attempt that failed counts"
    assert queue.renew("on", {other.id: 0}) == []
    harness.check()


def test_evicted_workers_are_shown_no_more_and_their_offers_go_to_others(queue: Clients) -> None:
    harness = QueueHarness(queue, prompts=1)
    harness.lease(1, "on")
    for worker in ("gone-1", "gone-2", "waits"):
        queue.heartbeat(worker, Heartbeat("engine", harness.version, "idle"), every_s=60.0)
        assert harness.lease(1, worker) == ()
    controller = queue.controller("c")
    controller.lead(60.0)
    controller.order(WorkerOrder("rest"), ["gone-1"])
    harness.submit("b", 1)
    queue.admit()
    assert queue.client.exists(queue.keys.offer("gone-1")), "it has waited longest"
    assert queue.evict("gone-") == 0
    assert queue.wait_for_work("waits", 10.0)
    assert {worker.name for worker in queue.status().workers} == {"on", "waits"}
    gone = [make(name) for make in (queue.keys.worker, queue.keys.offer, queue.keys.order, queue.keys.token)
            for name in ("gone-1", "gone-2")]  # fmt: skip
    assert not queue.client.exists(*gone)
