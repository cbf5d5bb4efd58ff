"""Real Redis servers for tests: Redis from the machine (the floor, 7.0) and Valkey from its wheel.

One server per kind and process of a session, append-only file fsynced on each write; each test gets a run of its own.
"""

import itertools
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path

import pytest
import redis

from echo_queue.launch.servers.redis_server import RedisServer
from echo_queue.queue import library
from tests.queue.clients import Clients

KINDS = ("redis", "valkey")
_runs = itertools.count()


def start_redis(kind: str, directory: Path) -> RedisServer:
    """A started server of that kind with the queue's functions in it; skips the test if the machine has none."""
    program = shutil.which("redis-server") if kind == "redis" else None
    if kind == "redis" and program is None:
        pytest.skip("no redis-server on the path: `apt-get install redis-server`")
    server = RedisServer(directory, Path(program) if program else None)
    server.start()
    with server.client() as client:
        library.load(client)
    return server


@pytest.fixture(scope="session")
def redis_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], RedisServer]]:
    """Gives the server of a kind: started when it is first asked for, kept until the session ends."""
    with ExitStack() as left:

        @cache
        def of(kind: str) -> RedisServer:
            server = start_redis(kind, tmp_path_factory.mktemp(kind))
            left.callback(server.stop)
            return server

        yield of


@pytest.fixture(scope="session", params=KINDS)
def redis_server(request: pytest.FixtureRequest, redis_servers: Callable[[str], RedisServer]) -> RedisServer:
    """A running server, of each kind in turn."""
    return redis_servers(request.param)


@pytest.fixture
def redis_client(redis_server: RedisServer) -> Iterator["redis.Redis"]:
    """A connection that may do everything, without retries of its own."""
    with redis_server.client() as client:
        yield client


@pytest.fixture
def run_name() -> str:
    """A run that no other test uses."""
    return f"test-{os.getpid()}-{next(_runs)}"


@pytest.fixture
def queue(redis_client: "redis.Redis", run_name: str) -> Clients:
    """The queue of a fresh run; not configured yet."""
    return Clients(redis_client, run_name, deadline_s=10.0)
