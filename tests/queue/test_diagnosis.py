"""Each sentence about a run that stands still, on a real queue that was brought to stand still in that way."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from echo_queue.errors import ServiceError
from echo_queue.launch.servers.redis_server import RedisServer
from echo_queue.queue import Chunk, Heartbeat, PromptSet, diagnosis
from echo_queue.records import Version
from tests.queue.clients import Clients
from tests.queue.queue_harness import RULES, QueueHarness

STILL_S = 90.0


def said(queue: Clients) -> tuple[str, ...]:
    return diagnosis.causes(diagnosis.snapshot(queue), STILL_S)


def alive(harness: QueueHarness, *names: str, state: str = "idle", version: Version | None = None) -> None:
    for name in names:
        harness.queue.heartbeat(name, Heartbeat("made up", version or harness.version, state), every_s=60.0)


def learner_was_heard(queue: Clients, seconds_ago: int = 0) -> None:
    queue.reclaim()
    swept = int(queue.client.hget(queue.keys.state, "swept_ms") or 0)  # type: ignore[arg-type]
    queue.client.hset(queue.keys.state, "swept_ms", swept - 1000 * seconds_ago)


def after_two_updates_unpublished(queue: Clients) -> QueueHarness:
    harness = QueueHarness(queue, prompts=20)
    harness.complete(harness.lease(4))
    harness.update(publish=False)
    harness.update(publish=False)
    learner_was_heard(queue)
    return harness


def test_a_worker_that_went_silent_with_tasks_is_named(queue: Clients) -> None:
    harness = QueueHarness(queue, prompts=20)
    learner_was_heard(queue)
    harness.lease(3, "worker-2")
    queue.heartbeat("worker-2", Heartbeat("made up", harness.version, "generating"), every_s=0.001)
    queue.client.zincrby(queue.keys.prefix + "workers", -41_000, "worker-2")
    alive(harness, "worker-1")
    first, *others = said(queue)
    assert first == "worker-2 holds 3 tasks and its heartbeat is 41 s old"
    assert others[0] == "1 task waits, and worker-1 leases none"
    assert diagnosis.silent(queue.status()) == (first,), "certain at the first look"


def test_a_worker_that_was_never_heard_is_named_too(queue: Clients) -> None:
    harness = QueueHarness(queue)
    harness.lease(2, "stranger")
    assert said(queue)[0] == "stranger holds 2 tasks and has left, or was not heard for an hour"


def test_a_worker_in_quarantine_is_named(queue: Clients) -> None:
    harness = QueueHarness(queue)
    learner_was_heard(queue)
    alive(harness, "worker-1", state="quarantined")
    assert said(queue)[0] == "worker-1 mistrusts its weights and loads them again"


def test_a_run_without_workers_says_so(queue: Clients) -> None:
    QueueHarness(queue, prompts=20)
    learner_was_heard(queue)
    assert said(queue) == (
        "no worker lives; 4 tasks and 16 prompts wait",
        "the learner waits: there are 0 of 2 groups",
    )


def test_workers_that_wait_for_weights_name_the_version(queue: Clients) -> None:
    harness = after_two_updates_unpublished(queue)
    alive(harness, "w1", "w2")
    assert said(queue) == (
        f"all workers wait for version {queue.status().learner.lineage}.1, which the learner has not published "
        "for 90 s",
        "the learner waits: there are 0 of 2 groups",
    )


def test_a_worker_that_cannot_fetch_weights_is_named(queue: Clients) -> None:
    harness = QueueHarness(queue, prompts=20)
    harness.round()
    learner_was_heard(queue)
    harness.complete(harness.lease(100, "w1"), "w1")
    alive(harness, "w2", state="fetching", version=Version(0, 0))
    assert "w2 is still fetching version 0.1, which the learner has published" in said(queue)


def test_workers_that_hold_tasks_and_complete_none_are_named(queue: Clients) -> None:
    harness = QueueHarness(queue, prompts=4)
    learner_was_heard(queue)
    harness.lease(2, "w1")
    harness.lease(2, "w2")
    alive(harness, "w1", "w2", state="generating")
    assert said(queue)[0] == "w1, w2 hold 4 tasks, and none was completed for 90 s"


def test_workers_that_lease_nothing_are_named(queue: Clients) -> None:
    harness = QueueHarness(queue, prompts=4)
    learner_was_heard(queue)
    alive(harness, "w1")
    assert said(queue)[0] == "4 tasks wait, and w1 leases none"


def test_a_backlog_that_nobody_admits_is_named(queue: Clients) -> None:
    harness = after_two_updates_unpublished(queue)
    queue.overrule(replace(RULES, s=5))
    alive(harness, "w1")
    assert "16 prompts wait in the backlog, and none is admitted at 0.2" in said(queue)


def test_a_component_that_the_mixture_waits_for_is_named(queue: Clients) -> None:
    harness = QueueHarness(queue, replace(RULES, mixture="a:1 b:9"), prompts=0)
    queue.declare(PromptSet("b.1", "source"), [Chunk(0, 0, 5)])
    harness.submit("a", 10)
    alive(harness, "w1")
    assert "the mixture waits for prompts of b, which are on their way" in said(queue)


def test_a_learner_that_went_silent_is_named(queue: Clients) -> None:
    harness = QueueHarness(queue, prompts=4)
    harness.complete(harness.lease(4))
    harness.drain(2)
    learner_was_heard(queue, seconds_ago=41)
    assert said(queue)[0] == "the learner was last heard 41 s ago and has 2 groups in hand"


def test_a_learner_that_takes_nothing_is_named(queue: Clients) -> None:
    harness = QueueHarness(queue, prompts=4)
    harness.complete(harness.lease(4))
    learner_was_heard(queue)
    assert said(queue) == ("4 groups wait for the learner, which has trained none for 90 s",)


def test_a_learner_at_work_on_an_update_is_not_called_idle(queue: Clients) -> None:
    harness = QueueHarness(queue, prompts=4)
    harness.complete(harness.lease(4))
    harness.drain(RULES.batch)
    learner_was_heard(queue)
    assert said(queue)[-1] == f"the learner has been at update 1, of {RULES.batch} groups, for 90 s"


def test_chunks_that_were_never_expanded_are_named(queue: Clients) -> None:
    QueueHarness(queue, prompts=0)
    queue.declare(PromptSet("x", "a file"), [Chunk(number, 10 * number, 10) for number in range(5)])
    for number in (0, 1, 2):
        queue.reject("x", Chunk(number, 10 * number, 10), "unreadable")
    assert said(queue)[:2] == (
        "no learner has begun yet",
        "chunks 3, 4 of set x were never expanded: no Celery worker took them",
    )


def test_of_many_chunks_some_are_named(queue: Clients) -> None:
    QueueHarness(queue, prompts=0)
    queue.declare(PromptSet("x", "a file"), [Chunk(number, 10 * number, 10) for number in range(1000)])
    assert "chunks 0, 1, 2, 3, 4, 5, 6, 7 and 992 more of set x were never expanded" in " ".join(said(queue))


def test_a_run_that_nobody_has_submitted_to_says_so(queue: Clients) -> None:
    QueueHarness(queue, prompts=0)
    learner_was_heard(queue)
    assert said(queue)[0] == "no prompts have been submitted"


def test_a_finished_run_is_held_up_by_nobody(queue: Clients) -> None:
    QueueHarness(queue)
    queue.finish(0, force=True)
    assert said(queue) == ()
    assert diagnosis.silent(queue.status()) == ()


def test_redis_itself_may_be_what_is_missing(tmp_path: Path) -> None:
    server = RedisServer(tmp_path)
    server.start()
    with server.client() as client:
        queue = Clients(client, "gone", deadline_s=0.2)
        server.stop()
        with pytest.raises(ServiceError):
            diagnosis.snapshot(queue)
    assert diagnosis.causes(None, STILL_S) == ("Redis does not answer",)


def test_an_idle_worker_says_what_its_lease_tells(queue: Clients) -> None:
    harness = QueueHarness(queue, prompts=4)
    harness.lease(4, "w2")
    told = diagnosis.of_worker(harness.leased(4, "w1"), harness.version, STILL_S)
    assert re.fullmatch(r"no task came for 90 s: the learner stands at version 0\.0 and published 0\.0, .*", told)


def test_stillness_ends_with_whatever_moves(queue: Clients) -> None:
    clock = [0.0]
    harness, stillness = QueueHarness(queue, prompts=20), diagnosis.Stillness(lambda: clock[0])
    assert stillness.seconds(queue.status()) == 0
    for move in (lambda: harness.complete(harness.lease(4)), harness.update, lambda: harness.submit("b", 2)):
        clock[0] += 5
        assert stillness.seconds(queue.status()) == 5
        assert stillness.seconds(None) == 5, "no answer is no movement"
        move()
        assert stillness.seconds(queue.status()) == 0
