"""Every move may be sent again after its reply was lost: the caller gets the answer, the queue is as if called once."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from echo_queue.errors import ServiceError
from echo_queue.queue import Beat, Chunk, Outcome, PromptSet, Queue
from echo_queue.records import Published, Shard, Version
from echo_queue.services.redis_server import RedisServer
from tests.faults.proxy import REPLY_LOST, Next, Proxy
from tests.faults.resp import Resp, a_move
from tests.queue.scene import POLICY, Scene, group_of


@pytest.fixture
def proxy(redis_server: RedisServer) -> Iterator[Proxy]:
    with Proxy(Resp(), redis_server.port) as proxy:
        yield proxy


@pytest.fixture
def lossy(proxy: Proxy, run_name: str) -> Queue:
    """The same run, behind the proxy."""
    client = redis.Redis(port=proxy.port, protocol=2, retry=Retry(NoBackoff(), 0), socket_timeout=10.0)
    return Queue(client, run_name, deadline_s=10.0)


@pytest.fixture
def losing(proxy: Proxy, queue: Queue) -> Callable[[Callable[[], Any]], Any]:
    """Makes a move while its first two replies are lost; returns its answer."""

    def make(move: Callable[[], Any]) -> Any:
        proxy.choose = lost = Next(REPLY_LOST, 2, a_move)
        answer = move()
        assert lost.left == 0
        assert queue.audit().ok, queue.audit()
        return answer

    return make


def test_every_move_survives_lost_replies(queue: Queue, lossy: Queue, losing: Callable[..., Any]) -> None:
    policy = replace(POLICY, s=4, max_attempts=1)
    losing(lambda: lossy.configure(policy))
    scene = Scene(queue, policy, prompts=0)
    losing(lambda: lossy.declare(PromptSet("a", "source"), [Chunk(0, 0, 8)]))
    losing(lambda: lossy.submit("a", 0, Shard("shard", 0, 8)))
    losing(lossy.admit)
    assert queue.audit().submitted == 8

    tasks = losing(lambda: lossy.lease("w1", scene.version, 6)).tasks
    assert len(tasks) == 6
    assert losing(lambda: lossy.renew("w1", [task.id for task in tasks], 0)) == []
    assert losing(lambda: lossy.release("w1", [tasks[5].id])) == 1
    assert losing(lambda: lossy.fail("w1", tasks[4].id, "reason"))
    losing(lossy.reclaim)
    assert (queue.status().counts["released"], queue.audit().dead) == (1, 1)
    assert losing(lambda: lossy.complete("w1", [group_of(tasks[0], "w1", scene.version)])) == [Outcome.accepted]
    scene.complete(tasks[1:4])

    lineage = losing(lambda: lossy.resume(0)).lineage
    assert lineage == 1
    drained = losing(lambda: lossy.drain(lineage, 2))
    assert [group.task for group in drained.groups] == [tasks[0].id, tasks[1].id]
    assert len(losing(lambda: lossy.pending(lineage))) == 2
    losing(lambda: lossy.advance(lineage, 1, 2, 8.0))
    losing(lambda: lossy.publish(lineage, Published(Version(lineage, 1), "manifest", "digest")))
    losing(lambda: lossy.commit(lineage, "1/1", [tasks[0].id, tasks[1].id]))
    losing(lambda: lossy.bury(tasks[2].id, "by hand"))
    losing(lambda: lossy.revive([tasks[2].id]))
    losing(lambda: lossy.beat("w1", Beat("engine", Version(1, 1), "idle")))
    losing(lossy.finish)
    losing(lossy.status)

    status = queue.status()
    assert (status.trained, status.uncommitted, status.learner, status.finished) == (2, 0, Version(1, 1), True)
    assert (status.flying, status.dead, status.counts.get("duplicate", 0)) == (0, 1, 0)
    losing(lambda: lossy.uncommit(lineage, "1/1", "", [tasks[0].id, tasks[1].id]))
    assert (queue.status().trained, queue.audit().ok) == (0, True)


def test_a_server_that_stays_away_is_one_clear_error(run_name: str) -> None:
    client = redis.Redis(port=1, protocol=2, retry=Retry(NoBackoff(), 0))
    with pytest.raises(ServiceError, match=r"no answer within 0 s.*\n.*is it running and reachable"):
        Queue(client, run_name, deadline_s=0.2).audit()


def test_a_run_without_rules_is_one_clear_error(queue: Queue) -> None:
    with pytest.raises(ServiceError, match=r"no policy at .*\n.*start `echo-queue services`"):
        queue.audit()


def test_missing_functions_are_loaded_by_who_may(queue: Queue) -> None:
    scene = Scene(queue)
    queue.client.function_delete("echo_queue_1")
    scene.check()


def test_a_full_server_takes_no_more_but_lets_the_learner_drain_it(queue: Queue) -> None:
    scene = Scene(queue, replace(POLICY, s=9))
    done, *more = scene.lease(2)
    scene.complete((done,))
    hasty = Queue(queue.client, queue.run, deadline_s=0.1)
    queue.client.config_set("maxmemory", 1)
    try:
        with pytest.raises(ServiceError, match=r"Redis is at maxmemory"):
            hasty.complete("w1", [group_of(more[0], "w1", scene.version)])
        assert hasty.renew("w1", [more[0].id], 0) == []
        assert [group.task for group in hasty.drain(0, 1).groups] == [done.id]
        hasty.advance(0, 1, 1, 8.0)
        assert hasty.commit(0, "0/1", [done.id]) == 1
    finally:
        queue.client.config_set("maxmemory", 0)
    scene.check()
    assert queue.complete("w1", [group_of(more[0], "w1", scene.version)]) == [Outcome.accepted]


def test_a_wrong_password_is_one_clear_error_at_once(redis_server: RedisServer, run_name: str) -> None:
    client = redis.Redis(port=redis_server.port, username="nobody", password="guess", retry=Retry(NoBackoff(), 0))
    with pytest.raises(ServiceError, match=r"check the user's name and its password"):
        Queue(client, run_name, deadline_s=60.0).audit()
