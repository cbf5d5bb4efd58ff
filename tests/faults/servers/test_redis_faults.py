"""The faults of Redis itself: it ends in the middle of a rewrite, its log is torn, memory or disk are full.

Nothing acknowledged is lost, every waiting role gets one clear error, and the run goes on when there is room again.
"""

import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from echo_queue.config import Config
from echo_queue.connections.connect import connect_redis
from echo_queue.errors import ServiceError
from echo_queue.launch.backoff import RestartBackoff
from echo_queue.launch.servers.redis_server import RedisServer
from echo_queue.launch.servers.serving import Services
from echo_queue.queue import Outcome
from echo_queue.records import Version
from tests.launch.servers.conftest import small_disk  # noqa: F401
from tests.queue.clients import Clients
from tests.queue.queue_harness import RULES, QueueHarness, group_of
from tests.servers.redis import KINDS, start_redis
from tests.waiting import wait_until

REWRITES = 5
BALLAST_KEYS, KEY_DELAY_US = 2_000, 100
"""A rewrite takes the product of both, every other one ten times that: a kill meets it on a slow machine as well."""
DEADLINE_S = 120.0
TIRELESS = RestartBackoff(first_pause_s=0.05, longest_pause_s=0.2, settled_s=10.0, most_ends=10_000)
"""Starts servers again for as long as a slow machine takes to free the disk."""


@pytest.fixture(params=KINDS)
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RedisServer]:
    """A server of its own, of each kind in turn."""
    server = start_redis(request.param, tmp_path / "redis")
    yield server
    server.stop()


def queue_at(server: RedisServer, deadline_s: float = DEADLINE_S) -> Clients:
    client = redis.Redis(port=server.port, protocol=2, retry=Retry(NoBackoff(), 0), socket_timeout=10.0)
    return Clients(client, "run", deadline_s=deadline_s)


class Worker(threading.Thread):
    """Leases and completes, one task at a time, until nothing is left or it is stopped; `done` was acknowledged.

    It admits prompts as the housekeeper does, since one move admits a few hundred of them at most.
    """

    def __init__(self, queue: Clients) -> None:
        super().__init__(daemon=True)
        self.done: list[str] = []
        self.stopping = threading.Event()
        self._queue = queue

    def run(self) -> None:
        while not self.stopping.is_set():
            tasks = self._queue.lease("w1", Version(0, 0), 1).tasks
            if not tasks and not self._queue.admit() and not self._queue.audit().backlog:
                return
            for task in tasks:
                assert self._queue.complete("w1", [group_of(task, "w1", Version(0, 0))]) == [Outcome.accepted]
                self.done.append(task.id)

    def stop(self) -> None:
        self.stopping.set()
        self.join(DEADLINE_S)
        assert not self.is_alive()


@pytest.mark.slow
def test_sigkill_during_a_rewrite_of_the_log_loses_nothing_that_was_acknowledged(server: RedisServer) -> None:
    harness = QueueHarness(queue_at(server), replace(RULES, s=100_000), prompts=100_000)
    with server.client() as client:
        client.mset({f"ballast:{number}": "x" for number in range(BALLAST_KEYS)})
    worker = Worker(queue_at(server))
    worker.start()
    met = 0
    for rewrite in range(REWRITES):
        before = len(worker.done)
        wait_until(lambda before=before: len(worker.done) > before, "a completion")  # type: ignore[misc]
        with server.client() as client:
            client.config_set("rdb-key-save-delay", KEY_DELAY_US if rewrite % 2 else 10 * KEY_DELAY_US)
            client.bgrewriteaof()
            time.sleep(random.uniform(0, 1.2 * BALLAST_KEYS * KEY_DELAY_US / 1e6))
            met += int(client.info("persistence")["aof_rewrite_in_progress"])
        server.kill()
        acknowledged = len(worker.done)
        server.start()
        audit = harness.queue.audit()
        assert audit.ok and acknowledged <= audit.replay, (audit, acknowledged)
    worker.stop()
    assert met, "no kill met a rewrite"
    audit = harness.queue.audit()
    assert audit.ok and audit.replay == len(set(worker.done)) == len(worker.done)
    with server.client() as client:
        assert all(client.mget([f"ballast:{number}" for number in range(BALLAST_KEYS)]))


@pytest.mark.slow
def test_a_log_that_is_torn_anywhere_at_its_end_is_a_consistent_past(server: RedisServer) -> None:
    """More is cut off than a crash could take: whole moves are forgotten, but none by half."""
    harness = QueueHarness(queue_at(server), replace(RULES, s=100), prompts=200)
    draw, forgotten = random.Random(0), 0
    for _ in range(6):
        harness.complete(harness.lease(4))
        before = harness.queue.audit()
        server.kill()
        (log,) = server.dir.glob("appendonlydir/*.incr.aof")
        os.truncate(log, log.stat().st_size - draw.randrange(1, 3000))
        server.start()
        audit = harness.queue.audit()
        assert audit.ok and audit.replay <= before.replay, audit
        forgotten += before.replay - audit.replay
    assert forgotten, "nothing was torn off"
    harness.drain(2)


def test_a_server_out_of_memory_is_drained_and_then_the_run_goes_on(server: RedisServer) -> None:
    harness = QueueHarness(queue_at(server), replace(RULES, s=100_000), prompts=60)
    worker = Worker(queue_at(server))
    worker.start()
    wait_until(lambda: len(worker.done) >= 10, "ten completions")
    with server.client() as client:
        client.config_set("maxmemory", 1)
        full = len(worker.done) + 1  # the one on its way
        trained = train_all(harness)
        assert len(trained) <= full and worker.is_alive(), "it waits"
        assert harness.queue.audit().ok
        client.config_set("maxmemory", 0)
    wait_until(lambda: not worker.is_alive(), "the rest")
    trained += train_all(harness)
    assert sorted(trained) == sorted(worker.done) and len(set(trained)) == 60
    audit = harness.queue.audit()
    assert audit.ok and audit.trained == 60


def train_all(harness: QueueHarness) -> list[str]:
    """Drains, trains and commits what is in replay, in batches, as a learner does."""
    trained: list[str] = []
    while groups := harness.queue.drain(0, 4).groups:
        ids = [group.task for group in groups]
        harness.queue.advance(0, harness.learner_version + 1, len(ids), 8.0)
        harness.commit(ids)
        trained += ids
    return trained


@pytest.mark.slow
def test_services_on_a_full_disk_say_so_and_go_on_when_there_is_space(
    small_disk: Path,  # noqa: F811
    configure: Callable[..., Config],
) -> None:
    config = configure(small_disk / "run")
    services = Services(config, TIRELESS)
    services.start()
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(0.05):
            services.watch()

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        harness = QueueHarness(
            Clients(connect_redis(config, "admin"), "full", deadline_s=5.0), replace(RULES, s=1000), 10_000
        )
        ballast = fill(small_disk)
        acknowledged = 0
        with pytest.raises(ServiceError, match="no answer within"):
            while True:
                acknowledged += len(harness.complete(harness.lease(50)))
        wait_until(lambda: "its disk is full" in told(config), "what is wrong")
        ballast.unlink()
        wait_until(lambda: told(config) == "", "the server")
        harness.queue.caller.deadline_s = DEADLINE_S
        audit = harness.queue.audit()
        assert audit.ok and acknowledged <= audit.replay <= acknowledged + 50
        assert harness.complete(harness.lease(1)) == [Outcome.accepted]
    finally:
        ended.set()
        watcher.join()
        services.stop()


def fill(disk: Path) -> Path:
    """A file that leaves little of the disk."""
    ballast = disk / "ballast"
    with ballast.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize - (256 << 10))
    return ballast


def told(config: Config) -> str:
    """Returns the error of a connection attempt; empty if it works."""
    try:
        connect_redis(config, "admin", deadline_s=0).close()
    except ServiceError as error:
        return str(error)
    return ""
