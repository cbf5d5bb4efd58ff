"""An outage of Redis costs living workers nothing; the tasks of dead workers come back spread out, and their
names are forgotten.
"""

import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from echo_queue.launch.servers.redis_server import RedisServer
from echo_queue.queue import RunRules, library
from echo_queue.queue.operator import SWEEP_MAX
from tests.queue.clients import Clients
from tests.queue.queue_harness import QueueHarness
from tests.waiting import wait_until

LEASE_MS = 1000
SWEEP_S = LEASE_MS / 4000
RENEWALS = 4
"""One lease long."""
RULES = RunRules(s=1, batch=200, lease_ms=LEASE_MS, max_attempts=3, pace=False)
FORGET_MS = 100


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    program = shutil.which("redis-server")
    server = RedisServer(tmp_path, Path(program) if program else None)
    server.start()
    with server.client() as client:
        library.load(client)
    yield server
    server.stop()


def sweep(queue: Clients, until: Callable[[], bool], what: str) -> list[int]:
    """Sweeps as the learner's housekeeper does; returns how many leases each sweep ended."""
    ended: list[int] = []

    def swept() -> bool:
        if until():
            return True
        reclaimed = queue.reclaim()
        ended.append(reclaimed.expired + reclaimed.dead)
        time.sleep(SWEEP_S)
        return False

    wait_until(swept, what)
    return ended


@pytest.mark.parametrize("outage_leases", [1.2, 2.5])
def test_living_workers_keep_their_leases_over_an_outage(server: RedisServer, outage_leases: float) -> None:
    with server.client() as client:
        queue = Clients(client, "outage", deadline_s=30.0)
        harness = QueueHarness(queue, RULES, prompts=4)
        ids = [task.id for task in harness.lease(4, "living")]
        queue.reclaim()
        queue.renew("living", dict.fromkeys(ids, 0))
        server.kill()
        time.sleep(outage_leases * LEASE_MS / 1000)
        server.start()
        assert queue.reclaim().expired == 0, "the housekeeper may be back first"
        assert queue.renew("living", dict.fromkeys(ids, 0)) == []
        renewals = iter(range(RENEWALS))
        sweep(
            queue,
            lambda: queue.renew("living", dict.fromkeys(ids, 0)) != [] or next(renewals, None) is None,
            "all renewals",
        )
        assert queue.renew("living", dict.fromkeys(ids, 0)) == []
        assert harness.count("expired") == 0
        harness.check()


def test_what_dead_workers_held_comes_back_a_sweep_at_a_time(server: RedisServer) -> None:
    with server.client() as client:
        queue = Clients(client, "spread", deadline_s=30.0)
        harness = QueueHarness(queue, RULES, prompts=200)
        living = [task.id for task in harness.lease(50, "living")]
        assert len(harness.lease(150, "dead")) == 150
        queue.reclaim()
        server.kill()
        time.sleep(1.2 * LEASE_MS / 1000)
        server.start()

        def all_back() -> bool:
            assert queue.renew("living", dict.fromkeys(living, 0)) == []
            return harness.count("expired") == 150

        ended = sweep(queue, all_back, "150 expired leases")
        assert ended[0] == 0, "those who live may renew first"
        assert max(ended) == SWEEP_MAX
        harness.check()


def test_a_slow_housekeeper_ends_leases_too(server: RedisServer) -> None:
    with server.client() as client:
        queue = Clients(client, "slow", deadline_s=30.0)
        harness = QueueHarness(queue, replace(RULES, lease_ms=100), prompts=4)
        harness.lease(4, "dead")
        queue.reclaim()

        def all_expired() -> bool:
            time.sleep(0.08)
            queue.reclaim()
            return harness.count("expired") == 4

        wait_until(all_expired, "the expired leases")


@pytest.mark.slow
def test_names_of_workers_that_came_and_went_do_not_pile_up(server: RedisServer) -> None:
    with server.client() as client:
        client.function_load(library.source().replace("3600000", str(FORGET_MS)), replace=True)
        queue = Clients(client, "names", deadline_s=30.0)
        harness = QueueHarness(queue, RULES, prompts=400)
        for number in range(200):
            tasks = queue.lease(f"spot-{number}", harness.version, 2).tasks
            if number % 2:
                queue.complete(f"spot-{number}", [])
                queue.release(f"spot-{number}", [task.id for task in tasks])
        assert len(client.xinfo_consumers(queue.keys.tasks, "workers")) == 200

        def forgotten() -> bool:
            harness.check()
            return not client.xinfo_consumers(queue.keys.tasks, "workers")

        sweep(queue, forgotten, "names that are forgotten")
        status = queue.status()
        assert (status.tasks + status.retry, status.in_flight, status.dead) == (400, 0, 0), (
            "none went with its holder's name"
        )
        assert [worker.name for worker in status.workers] == []
