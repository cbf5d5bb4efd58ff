"""One Redis and one object store for all tests of this folder; a peer harness of its own for each."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from echo_queue.connections.storage.object_store import ObjectStore
from echo_queue.launch.servers.redis_server import RedisServer
from tests.queue.clients import Clients
from tests.servers.redis import start_redis
from tests.servers.s3 import BUCKET, Server, server_of
from tests.workers.weights.peer_harness import DEADLINE_S, PeerHarness
from workers.weights.peers import source_choice

STORE_DEADLINE_S = 60.0


@dataclass(frozen=True)
class Servers:
    redis: RedisServer
    store: Server


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    folder = tmp_path_factory.mktemp("servers")
    redis, store = start_redis("valkey", folder / "redis"), server_of("rclone", folder / "store")
    try:
        store.start()
        ObjectStore(store.endpoint(BUCKET), "setup", STORE_DEADLINE_S).create_bucket()
        yield Servers(redis, store)
    finally:
        redis.stop()
        store.stop()


@pytest.fixture
def patient_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets no source be judged by its speed, nor be given up before a chunk's deadline: a test that says how many bytes
    came from where holds on a machine that stands still for a while."""
    for name in ("LOOK_S", "LEAST_SILENCE_S"):
        monkeypatch.setattr(source_choice, name, DEADLINE_S)


@pytest.fixture
def peer_harness(servers: Servers, tmp_path: Path, run_name: str) -> Iterator[PeerHarness]:
    with servers.redis.client() as client:
        store = ObjectStore(servers.store.endpoint(BUCKET), run_name, STORE_DEADLINE_S)
        peer_harness = PeerHarness(Clients(client, run_name, deadline_s=10.0), store, tmp_path / "part_cache")
        yield peer_harness
        peer_harness.close()
