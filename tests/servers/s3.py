"""Real S3 servers for tests: rclone, which is embedded, and Swift, which honours `If-None-Match`.

One server per kind and process of a session; each test gets a run of its own in it.
"""

import importlib.util
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Protocol

import pytest

from echo_queue.connections.secrets import StoreKeys
from echo_queue.connections.storage.endpoint import StoreEndpoint
from echo_queue.connections.storage.object_store import ObjectStore
from echo_queue.launch.servers.s3_server import S3Server
from tests.servers.swift import Swift

BUCKET = "echo-queue"
KEYS = StoreKeys("TESTTESTTESTTESTTEST", "no-secret-at-all")
DEADLINE_S = 120.0


class Server(Protocol):
    @property
    def url(self) -> str: ...
    def endpoint(self, bucket: str) -> StoreEndpoint: ...
    def start(self) -> object: ...
    def stop(self) -> None: ...
    def kill(self) -> None: ...


def server_of(kind: str, directory: Path) -> Server:
    """A server that is not started yet; skips the test if this Python has none of that kind."""
    if kind == "rclone":
        return S3Server(directory, KEYS)
    if importlib.util.find_spec("swift") is None:
        pytest.skip("Swift is not installed: `pip install swift`")
    return Swift(directory)


@pytest.fixture(scope="session")
def s3_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Server]]:
    """Gives the server of a kind, with a bucket: started when it is first asked for, kept until the session ends."""
    with ExitStack() as left:

        @cache
        def of(kind: str) -> Server:
            server = server_of(kind, tmp_path_factory.mktemp(kind))
            left.callback(server.stop)
            server.start()
            ObjectStore(server.endpoint(BUCKET), "setup", DEADLINE_S).create_bucket()
            return server

        yield of


@pytest.fixture(scope="session", params=("rclone", "swift"))
def s3_server(request: pytest.FixtureRequest, s3_servers: Callable[[str], Server]) -> Server:
    """A running server with a bucket, of each kind in turn."""
    return s3_servers(request.param)


@pytest.fixture(scope="session")
def honours_put_once(s3_server: Server) -> bool:
    return ObjectStore(s3_server.endpoint(BUCKET), "setup", DEADLINE_S).puts_once


@pytest.fixture
def object_store(s3_server: Server, honours_put_once: bool, run_name: str) -> ObjectStore:
    """The objects of a fresh run."""
    return ObjectStore(replace(s3_server.endpoint(BUCKET), put_once=honours_put_once), run_name, DEADLINE_S)
