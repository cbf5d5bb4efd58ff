"""A lease lasts as long as it should, however the wall clock of Redis is set."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from echo_queue.launch.servers.redis_server import RedisServer
from echo_queue.queue import library
from tests.queue.clients import Clients
from tests.queue.queue_harness import RULES, QueueHarness
from tests.waiting import wait_until

HOUR_MS = 3_600_000
LEASE_MS = 300
WALL = "  return time[1] * 1000 + math.floor(time[2] / 1000)\n"
"""The only place where the queue reads the clock of Redis."""


class WallClock:
    """The clock of one run's Redis, as far as the queue sees it."""

    def __init__(self, queue: Clients) -> None:
        self._client, self._key = queue.client, queue.keys.prefix + "wall"

    def set(self, by_ms: int) -> None:
        self._client.set(self._key, by_ms)


@pytest.fixture
def wall(redis_server: RedisServer, queue: Clients) -> Iterator[WallClock]:
    source = library.source()
    assert source.count(WALL) == 1
    moved = WALL.rstrip() + f" + (redis.call('GET', '{queue.keys.prefix}wall') or 0)\n"
    queue.client.function_load(source.replace(WALL, moved), replace=True)
    yield WallClock(queue)
    library.load(queue.client)


@pytest.mark.parametrize("by_ms", [-HOUR_MS, 600_000, HOUR_MS])
def test_what_dead_workers_hold_comes_back_after_the_clock_was_set(queue: Clients, wall: WallClock, by_ms: int) -> None:
    harness = QueueHarness(queue, replace(RULES, lease_ms=LEASE_MS), prompts=4)
    queue.reclaim()
    harness.lease(2, "dead")
    wall.set(by_ms)
    queue.reclaim()
    harness.lease(2, "dead-too")
    wait_until(lambda: queue.reclaim() and harness.count("expired") == 4, "the leases of dead workers to run out", 10.0)


@pytest.mark.parametrize("by_ms", [-HOUR_MS, 600_000, HOUR_MS])
def test_living_workers_keep_their_leases_when_the_clock_is_set(queue: Clients, wall: WallClock, by_ms: int) -> None:
    harness = QueueHarness(queue, prompts=2)
    ids = [task.id for task in harness.lease(2, "living")]
    queue.reclaim()
    for _ in range(4):
        wall.set(by_ms)
        assert queue.reclaim().leases == 0
        assert queue.renew("living", dict.fromkeys(ids, 0)) == []
        wall.set(0)
        assert queue.reclaim().leases == 0
    harness.check()


def test_a_clock_that_was_ahead_delays_no_lease_that_is_taken_afterwards(queue: Clients, wall: WallClock) -> None:
    """A grace given by a clock that is then set back must not last until the clock has caught up."""
    harness = QueueHarness(queue, replace(RULES, lease_ms=LEASE_MS), prompts=2)
    for by_ms in (HOUR_MS, 2 * HOUR_MS, 0):
        wall.set(by_ms)
        queue.reclaim()
    harness.lease(2, "dead")
    wait_until(lambda: queue.reclaim() and harness.count("expired") == 2, "a dead worker's leases to run out", 10.0)


def test_the_learner_waits_no_longer_for_what_is_late_when_the_clock_is_set_back(
    queue: Clients, wall: WallClock
) -> None:
    harness = QueueHarness(queue, replace(RULES, s=0, late="wait", late_deadline_ms=50), prompts=1)
    queue.reclaim()
    harness.lease(1, "slow")
    assert harness.drain(1).seats == 1
    wall.set(-HOUR_MS)
    wait_until(lambda: queue.reclaim() and harness.drain(1).seats == 0, "the end of the learner's wait", 10.0)
