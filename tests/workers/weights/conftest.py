"""One Redis and one object store for all tests of this folder; a region of its own for each."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from echo_queue.services.redis_server import RedisServer
from echo_queue.storage.object_store import ObjectStore
from tests.queue.clients import Clients
from tests.servers.redis import start_redis
from tests.servers.s3 import BUCKET, Server, server_of
from tests.workers.weights.scene import Region

STORE_DEADLINE_S = 5.0


@dataclass(frozen=True)
class Site:
    redis: RedisServer
    store: Server


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("site")
    redis, store = start_redis("valkey", folder / "redis"), server_of("rclone", folder / "store")
    try:
        store.start()
        ObjectStore(store.endpoint(BUCKET), "setup", STORE_DEADLINE_S).create_bucket()
        yield Site(redis, store)
    finally:
        redis.stop()
        store.stop()


@pytest.fixture
def region(site: Site, tmp_path: Path, run_name: str) -> Iterator[Region]:
    with site.redis.client() as client:
        store = ObjectStore(site.store.endpoint(BUCKET), run_name, STORE_DEADLINE_S)
        region = Region(Clients(client, run_name, deadline_s=10.0), store, tmp_path / "part_cache")
        yield region
        region.close()
