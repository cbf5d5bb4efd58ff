"""A run to which machines can be invited: Redis over TLS with a user for each role, and an object store."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from echo_queue.config import Config, toml_text
from echo_queue.config.loading import load
from echo_queue.connections.secrets import ROLES
from echo_queue.connections.storage.object_store import ObjectStore
from echo_queue.launch.servers.redis_server import RedisServer
from echo_queue.launch.servers.s3_server import S3Server
from echo_queue.launch.servers.serving import users
from tests.servers.ports import free_port
from tests.servers.s3 import BUCKET, KEYS
from tests.servers.tls import certify, tls_words

RUN = "home"
VARIABLES = {
    **{f"ECHO_QUEUE_{role.upper()}_REDIS_PASSWORD": f"password of {role}" for role in ROLES},
    "ECHO_QUEUE_WORKER_STORE_ACCESS_KEY": KEYS.access_key,
    "ECHO_QUEUE_WORKER_STORE_SECRET_KEY": KEYS.secret_key,
    "ECHO_QUEUE_STORE_ACCESS_KEY": KEYS.access_key,
    "ECHO_QUEUE_STORE_SECRET_KEY": KEYS.secret_key,
}
"""The secrets on the machine of whoever invites."""


@dataclass(frozen=True)
class InvitingRun:
    """The servers, and the settings of a run on them."""

    folder: Path
    redis: RedisServer
    tls_port: int
    store: S3Server

    def settings(self) -> dict[str, dict[str, Any]]:
        return {
            "run": {"name": RUN, "dir": str(self.folder / "run")},
            "redis": {
                "url": f"rediss://localhost:{self.tls_port}/0",
                "username": "{role}",
                "ca_file": str(self.folder / "authority.pem"),
            },
            "store": {"url": self.store.url, "bucket": BUCKET},
            "environment": {"kind": "math"},
            "queue": {"lease_s": 2.5},
        }

    def config_file(self, **sections: dict[str, Any]) -> Path:
        """Writes the run's configuration; `sections` replace settings or add some."""
        settings = self.settings()
        for section, values in sections.items():
            settings[section] = settings.get(section, {}) | values
        path = self.folder / "run.toml"
        path.write_text(toml_text.written(settings))
        return path

    def config(self) -> Config:
        return load(self.config_file())


@contextmanager
def inviting_run(folder: Path) -> Iterator[InvitingRun]:
    program = shutil.which("redis-server")
    if program is None or shutil.which("openssl") is None:
        pytest.skip("no redis-server with TLS, or no openssl, on the path: `apt-get install redis-server openssl`")
    certify(folder)
    port = free_port()
    known = users(RUN, {role: VARIABLES[f"ECHO_QUEUE_{role.upper()}_REDIS_PASSWORD"] for role in ROLES})
    redis = RedisServer(folder / "redis", Path(program), known, tls_words(folder, port))
    store = S3Server(folder / "s3", KEYS)
    redis.start()
    store.start()
    ObjectStore(store.endpoint(BUCKET), "setup", 20.0).create_bucket()
    yield InvitingRun(folder, redis, port, store)
    store.stop()
    redis.stop()
