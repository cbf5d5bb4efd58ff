"""A caller gets a clear error if the server is away, full, without rules or functions, or refuses it."""

from dataclasses import replace

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from echo_queue.errors import ServiceError
from echo_queue.launch.servers.redis_server import RedisServer
from echo_queue.queue import Outcome
from echo_queue.records import PartialGroup
from tests.queue.clients import Clients
from tests.queue.queue_harness import RULES, QueueHarness, group_of, partial_of


def test_a_server_that_stays_away_is_one_clear_error(run_name: str) -> None:
    client = redis.Redis(port=1, protocol=2, retry=Retry(NoBackoff(), 0))
    with pytest.raises(ServiceError, match=r"no answer within 0 s.*\n.*is it running and reachable"):
        Clients(client, run_name, deadline_s=0.2).audit()


def test_a_run_without_rules_is_one_clear_error(queue: Clients) -> None:
    with pytest.raises(ServiceError, match=r"no rules at .*\n.*start `echo-queue services`"):
        queue.audit()


def test_missing_functions_are_loaded_by_who_may(queue: Clients) -> None:
    harness = QueueHarness(queue)
    queue.client.function_delete("echo_queue_1")
    harness.check()


def test_a_full_server_takes_no_more_but_lets_the_learner_drain_it(queue: Clients) -> None:
    harness = QueueHarness(queue, replace(RULES, s=9))
    done, *more = harness.lease(2)
    harness.complete((done,))
    hasty = Clients(queue.client, queue.run, deadline_s=0.1)
    queue.client.config_set("maxmemory", 1)
    try:
        with pytest.raises(ServiceError, match=r"Redis is at maxmemory"):
            hasty.complete("w1", [group_of(more[0], "w1", harness.version)])
        assert hasty.renew("w1", {more[0].id: 0}) == []
        assert hasty.progress("w1", [PartialGroup(more[0].id, 0, (partial_of(0),))]) == []
        assert not queue.client.exists(queue.keys.partials)
        assert [group.task for group in hasty.drain(0, 1).groups] == [done.id]
        hasty.advance(0, 1, 1, 8.0)
        assert hasty.commit(0, "0/1", [done.id]) == 1
    finally:
        queue.client.config_set("maxmemory", 0)
    harness.check()
    assert queue.complete("w1", [group_of(more[0], "w1", harness.version)]) == [Outcome.accepted]


def test_a_wrong_password_is_one_clear_error_at_once(redis_server: RedisServer, run_name: str) -> None:
    client = redis.Redis(port=redis_server.port, username="nobody", password="guess", retry=Retry(NoBackoff(), 0))
    with pytest.raises(ServiceError, match=r"check the user's name and its password"):
        Clients(client, run_name, deadline_s=60.0).audit()
