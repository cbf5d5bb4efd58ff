"""The housekeeper frees what no worker holds any more, and its end is the learner's."""

import pytest

from echo_queue.connections.storage.object_store import ObjectStore
from echo_queue.errors import ServiceError
from echo_queue.queue import RunRules, Status
from echo_queue.queue.caller import Caller
from echo_queue.queue.operator import SWEEP_MAX
from echo_queue.queue.payloads import partials_folder
from echo_queue.records import PartialGroup, Task
from echo_queue.records.segments import cut
from learner.housekeeper import Housekeeper
from tests.queue.clients import Clients
from tests.queue.queue_harness import QueueHarness, partial_of
from tests.waiting import wait_until

HANDED_BACK = 5 * SWEEP_MAX + 1
RULES = RunRules(s=1, batch=HANDED_BACK, lease_ms=60_000, max_attempts=3, pace=False)


def test_all_that_was_handed_back_is_free_after_one_sweep(queue: Clients, store: ObjectStore) -> None:
    run = QueueHarness(queue, RULES, prompts=HANDED_BACK)
    queue.release("w1", [task.id for task in run.lease(HANDED_BACK)])
    seen: list[Status] = []
    housekeeper = Housekeeper(Caller(queue.client, queue.run), store, lease_s=1.0, observe=seen.append)
    housekeeper.start()
    wait_until(lambda: seen, "the first sweep")
    housekeeper.close()
    assert seen[0].counts["released"] == HANDED_BACK
    assert len(run.lease(HANDED_BACK, "w2")) == HANDED_BACK


def test_a_full_server_does_not_keep_the_housekeeper_from_ending_leases(queue: Clients, store: ObjectStore) -> None:
    run = QueueHarness(queue, RULES, prompts=2)
    queue.release("w1", [task.id for task in run.lease(1)])
    seen: list[Status] = []
    housekeeper = Housekeeper(Caller(queue.client, queue.run, deadline_s=60.0), store, lease_s=1.0, observe=seen.append)
    queue.client.config_set("maxmemory", 1)
    try:
        housekeeper.start()
        wait_until(lambda: seen, "the first sweep")
    finally:
        queue.client.config_set("maxmemory", 0)
        housekeeper.close()
    assert seen[0].counts["released"] == 1


def test_the_learner_hears_of_a_housekeeper_that_has_ended(queue: Clients, store: ObjectStore) -> None:
    QueueHarness(queue)

    def observe(status: Status) -> None:
        raise ZeroDivisionError("a defect of ours")

    housekeeper = Housekeeper(Caller(queue.client, queue.run), store, lease_s=1.0, observe=observe)
    housekeeper.check()
    housekeeper.start()
    wait_until(lambda: not housekeeper.is_alive(), "the end of the housekeeper")
    with pytest.raises(ZeroDivisionError):
        housekeeper.check()


def test_stored_partial_rollouts_go_with_their_tasks_and_none_outlives_the_run(
    queue: Clients, store: ObjectStore
) -> None:
    """One task is completed; of another a worker has stored an object when it died, which nobody was told of."""
    run = QueueHarness(queue, prompts=3)
    worker = Clients(queue.client, queue.run, store, inline_max_bytes=10)
    done, lost, held = worker.lease("w1", run.version, 3).tasks
    worker.progress("w1", [PartialGroup(task.id, 0, (partial_of(0, length=20),)) for task in (done, held)])
    worker.payloads.keep_segment(cut(PartialGroup(lost.id, 0, (partial_of(0, length=20),))))
    run.complete((done,))

    def stored(*tasks: Task) -> bool:
        folders = {key.key.rpartition("/")[0] + "/" for key in store.list("partials/")}
        return folders == {partials_folder(task.id) for task in tasks}

    assert stored(done, lost, held)
    housekeeper = Housekeeper(Caller(queue.client, queue.run), store, lease_s=1.0, observe=lambda status: None)
    housekeeper.start()
    wait_until(lambda: stored(lost, held), "the removal of the completed task's")
    run.complete((lost,))
    housekeeper.remove_partials()
    assert stored(held), "a task under way keeps its own, for the run may go on"
    run.complete((held,))
    housekeeper.remove_partials()
    assert stored()


def test_a_key_that_somebody_spoiled_is_one_clear_error(queue: Clients) -> None:
    QueueHarness(queue)
    queue.client.set(Caller(queue.client, queue.run).keys.prefix + "open", "a string")
    with pytest.raises(ServiceError, match="see Redis's log"):
        queue.bury("a/0/0", "for a test")
