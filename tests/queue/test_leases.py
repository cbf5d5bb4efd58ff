"""Holding a task: leases, renewal, handing back, expiry, and giving a task up."""

from dataclasses import replace

from echo_queue.queue import Heartbeat, Outcome
from echo_queue.records import Published, Version
from tests.queue.clients import Clients
from tests.queue.queue_harness import RULES, QueueHarness, let_pass


def test_a_task_is_held_by_one_worker_at_a_time(queue: Clients) -> None:
    harness = QueueHarness(queue, prompts=4)
    first, second = harness.lease(3, "w1"), harness.lease(3, "w2")
    assert [task.index for task in first + second] == [0, 1, 2, 3]
    assert harness.lease(3, "w3") == ()


def test_two_runs_on_one_server_keep_to_their_own_tasks(queue: Clients) -> None:
    runs = [QueueHarness(Clients(queue.client, f"{queue.run}-{name}"), prompts=4) for name in ("first", "second")]
    for _ in range(2):
        for harness in runs:  # the server serves them in turns
            harness.complete(harness.lease(2))
    assert [len(harness.drain(4).groups) for harness in runs] == [4, 4]


def test_a_lease_says_what_the_worker_needs_to_know(queue: Clients) -> None:
    harness = QueueHarness(queue)
    answer = harness.leased(1)
    assert answer.published == Published(Version(0, 0), "weights/0.0", "digest")
    assert (answer.learner_version, answer.abandoned, answer.finished) == (Version(0, 0), False, False)
    task = answer.tasks[0]
    assert (task.id, task.shard.object, task.shard.count, task.pv, task.min_pv) == ("a/0/0", "shards/a/0", 40, 0, 0)
    queue.finish(0, force=True)
    assert harness.leased(1).finished
    assert harness.lease(1) == ()


def test_renewal_keeps_a_lease_and_names_what_is_lost(queue: Clients) -> None:
    harness = QueueHarness(queue, replace(RULES, lease_ms=400))
    tasks = harness.lease(2)
    ids = [task.id for task in tasks]
    for _ in range(4):
        let_pass(queue, 0.15)
        assert queue.renew("w1", dict.fromkeys(ids, 0)) == []
        assert queue.reclaim().expired == 0
    harness.complete(tasks[:1])
    assert queue.renew("w1", dict.fromkeys(ids, 0)) == ids[:1]
    assert queue.renew("w2", dict.fromkeys(ids, 0)) == ids


def test_an_expired_lease_goes_to_another_worker_with_one_attempt_more_and_a_fresh_tag(queue: Clients) -> None:
    harness = QueueHarness(queue, prompts=2)
    old = harness.lease(1, "w1")[0]
    queue.advance(0, 1, 0, 8.0)
    harness.publish(1)
    harness.expire()
    # what came back is leased first
    new = harness.lease(1, "w2")[0]
    assert (new.id, new.attempt, new.pv, new.min_pv) == (old.id, 1, 1, 1)
    assert queue.renew("w1", {old.id: 0}) == [old.id]
    assert harness.count("expired") == 1


def test_handing_back_costs_no_attempt_and_failing_does(queue: Clients) -> None:
    harness = QueueHarness(queue, prompts=2)
    kept, broken = harness.lease(2)
    assert queue.release("w1", [kept.id]) == 1
    assert queue.fail("w1", broken.id, "Traceback …\nValueError: no answer")
    assert not queue.fail("w2", kept.id, "not mine")
    swept = queue.reclaim()
    assert (swept.released, swept.failed, swept.expired) == (1, 1, 0)
    harness.check()
    assert {task.id: task.attempt for task in harness.lease(2)} == {kept.id: 0, broken.id: 1}
    text = queue.client.hget(queue.keys.failures, broken.id)
    assert text == "attempt 0 by w1: Traceback …\nValueError: no answer".encode()


def test_a_poisonous_task_dies_with_its_reason_and_can_be_revived(queue: Clients) -> None:
    harness = QueueHarness(queue, prompts=1)
    for attempt in range(3):
        (task,) = harness.lease(1, f"w{attempt}")
        assert task.attempt == attempt
        queue.fail(f"w{attempt}", task.id, "ValueError: poison " + "x" * 20_000)
        assert queue.reclaim().dead == (attempt == 2)
        harness.check()
    (dead,) = queue.dead()
    assert (dead.id, dead.attempts, dead.worker) == ("a/0/0", 3, "w2")
    assert dead.reason.startswith("attempt 2 by w2: ")
    assert 8000 < len(dead.reason) < 9000
    assert queue.revive([dead.id, "a/0/99"]) == 1
    harness.check()
    assert harness.lease(1)[0].attempt == 0


def test_a_task_that_failed_before_has_all_its_attempts_again_once_it_is_revived(queue: Clients) -> None:
    """One waits after a failure; of the other, the last attempt has failed, and no sweep has seen it yet."""
    harness = QueueHarness(queue, replace(RULES, max_attempts=2), prompts=3)
    waiting, failed, held = harness.lease(3)
    for task in (waiting, failed):
        assert queue.fail("w1", task.id, "KeyError: 'answer'")
    queue.reclaim()
    (again,) = harness.lease(1, "w2")
    assert queue.fail("w2", again.id, "KeyError: 'answer'")
    assert sorted(queue.failing()) == sorted([waiting.id, failed.id])
    assert queue.revive([*queue.failing(), held.id]) == 2, "nothing of the third has failed"
    assert queue.failing() == []
    harness.check()
    assert queue.reclaim().dead == 0
    assert {task.id: task.attempt for task in harness.lease(3, "w3")} == {waiting.id: 0, failed.id: 0}
    assert harness.complete((again,), "w2") == [Outcome.accepted], "a worker that had it in hand"
    assert queue.renew("w1", {held.id: 0}) == []
    harness.check()


def test_a_silent_worker_is_named_as_the_reason(queue: Clients) -> None:
    harness = QueueHarness(queue, replace(RULES, max_attempts=1), prompts=1)
    harness.lease(1, "spot-7")
    harness.expire()
    assert queue.dead()[0].reason == "the lease ran out: worker spot-7 went silent"


def test_a_good_group_that_comes_after_its_task_died_is_still_taken(queue: Clients) -> None:
    harness = QueueHarness(queue, replace(RULES, max_attempts=1), prompts=1)
    tasks = harness.lease(1)
    harness.expire()
    assert queue.audit().dead == 1
    assert harness.complete(tasks) == [Outcome.accepted]
    assert queue.audit().dead == 0
    assert [group.task for group in harness.update(1).groups] == [tasks[0].id]


def test_one_step_of_a_sweep_takes_back_a_bounded_number(queue: Clients) -> None:
    harness = QueueHarness(queue, replace(RULES, s=9), prompts=20)
    harness.lease(20)
    harness.expire(limit=6)
    assert queue.status().retry == 6


def test_a_consumer_group_that_is_made_again_hands_out_what_there_is(queue: Clients) -> None:
    harness = QueueHarness(queue, prompts=3)
    queue.client.xgroup_destroy(queue.keys.tasks, "workers")
    queue.configure(RULES)
    assert len(harness.lease(9)) == 3


def test_after_an_absence_living_workers_may_renew_before_leases_are_taken_back(queue: Clients) -> None:
    harness = QueueHarness(queue, replace(RULES, lease_ms=150))
    (task,) = harness.lease(1)
    queue.reclaim()
    let_pass(queue, 0.4)  # nobody sweeps, nobody renews: Redis or the learner is away
    assert queue.reclaim().expired == 0
    assert queue.renew("w1", {task.id: 0}) == []
    assert queue.reclaim().expired == 0


def test_an_operator_buries_a_task_wherever_it_is(queue: Clients) -> None:
    harness = QueueHarness(queue, prompts=3)
    done, in_flight = harness.lease(2)
    harness.complete((done,))
    for task_id in (done.id, in_flight.id, "a/0/2"):
        assert queue.bury(task_id, "by hand")
        assert not queue.bury(task_id, "by hand")
        harness.check()
    assert queue.audit().dead == 3
    assert harness.drain(1).groups == ()


def test_a_heartbeat_shows_a_worker_until_it_falls_silent(queue: Clients) -> None:
    QueueHarness(queue)
    heartbeat = Heartbeat("transformers", Version(0, 3), "generating", 812.5, 0.25, 17)
    queue.heartbeat("w1", heartbeat, every_s=60)
    (worker,) = queue.status().workers
    assert (worker.name, worker.heartbeat) == ("w1", heartbeat)
    queue.heartbeat("w1", heartbeat, every_s=0.01)
    let_pass(queue, 0.1)
    (worker,) = queue.status().workers
    assert worker.heartbeat is None
    assert worker.silent_ms >= 90
