"""A harness for submissions: real Redis with a user per role, a real S3 server, and Celery workers as processes."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from echo_queue.config import Config
from echo_queue.config.loading import load
from echo_queue.connections.endpoints import CELERY_PREFIX
from echo_queue.connections.secrets import ROLES, StoreKeys
from echo_queue.connections.storage.endpoint import StoreEndpoint
from echo_queue.connections.storage.object_store import ObjectStore
from echo_queue.launch.servers.redis_server import RedisServer, User
from echo_queue.launch.servers.s3_server import S3Server
from echo_queue.queue import RunRules, acl, library
from echo_queue.records import PromptRow, Published, Task, Version
from echo_queue.submission.shards import ShardReader
from tests.queue.clients import Clients

RUN, BUCKET, PASSWORD = "submission", "prompts", "secret"
KEYS = StoreKeys("A" * 20, "b" * 40)
REPOSITORY = Path(__file__).parents[2]
READY_S = 60.0


@dataclass
class SubmissionHarness:
    """One run. `path`: its TOML file; `admin`: its queue for a user who may do anything."""

    path: Path
    environ: dict[str, str]
    admin: Clients
    store: ObjectStore
    workers: list["subprocess.Popen[bytes]"] = field(default_factory=list)

    def config(self, **overlay: object) -> Config:
        changes = {f"ECHO_QUEUE_{key.upper()}": str(value) for key, value in overlay.items()}
        return load(self.path, self.environ | changes)

    def python(self, code: str) -> "subprocess.CompletedProcess[str]":
        """Runs `code` in the process of a submitter."""
        command = [sys.executable, "-c", code]
        return subprocess.run(
            command, env=self.environ, cwd=REPOSITORY, capture_output=True, text=True, timeout=120, check=False
        )

    def celery(self, processes: int = 1) -> "subprocess.Popen[bytes]":
        """A Celery worker in a session of its own, so that all of it can be killed at once."""
        command = [sys.executable, "-m", "celery", "-A", "echo_queue.submission", "worker", "-c", str(processes)]
        with self.log(len(self.workers)).open("wb") as log:
            options = {"cwd": REPOSITORY, "start_new_session": True, "stdout": log, "stderr": log}
            self.workers.append(subprocess.Popen([*command, "-l", "INFO"], env=self.environ, **options))  # type: ignore[call-overload]
        return self.workers[-1]

    def log(self, worker: int) -> Path:
        return self.path.with_name(f"celery-{worker}.log")

    def kill(self, worker: "subprocess.Popen[bytes]") -> None:
        if worker.poll() is None:
            os.killpg(worker.pid, signal.SIGKILL)
        worker.wait()

    def tasks(self) -> list[Task]:
        """Every task that the backlog gives, in order."""
        leased: list[Task] = []
        while tasks := self.admin.lease("reader", Version(0, 0), 1000).tasks:
            leased += tasks
        return leased

    def rows(self) -> dict[tuple[int, int], PromptRow]:
        """Returns the rows that workers would be given, by (epoch, index)."""
        reader, tasks = ShardReader(self.store, cache_shards=1000), self.tasks()
        rows = {(task.epoch, task.index): reader.row(task) for task in tasks}
        assert len(rows) == len(tasks), "a prompt came twice"
        return rows


@pytest.fixture(scope="session")
def shared_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreEndpoint]:
    server = S3Server(tmp_path_factory.mktemp("s3"), KEYS)
    server.start()
    endpoint = StoreEndpoint(server.url, BUCKET, access_key=KEYS.access_key, secret_key=KEYS.secret_key)
    ObjectStore(endpoint, RUN).create_bucket()
    yield endpoint
    server.stop()


@pytest.fixture(scope="session")
def shared_redis(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """The floor, Redis 7.0, where the machine has it; otherwise Valkey."""
    prefix = CELERY_PREFIX.format(run=RUN)
    users = [User(role, PASSWORD, acl.rules(role, RUN, prefix)) for role in sorted(ROLES, key="admin".__ne__)]
    program = shutil.which("redis-server")
    server = RedisServer(tmp_path_factory.mktemp("redis"), Path(program) if program else None, users)
    server.start()
    yield server
    server.stop()


@pytest.fixture
def harness(tmp_path: Path, shared_redis: RedisServer, shared_store: StoreEndpoint) -> Iterator[SubmissionHarness]:
    path = tmp_path / "run.toml"
    path.write_text(
        f"""
        run = {{ name = "{RUN}", dir = "{tmp_path}" }}
        redis = {{ url = "{shared_redis.url}", username = "{{role}}" }}
        store = {{ url = "{shared_store.url}", bucket = "{BUCKET}" }}
        prompts = {{ chunk = 100 }}
        submission = {{ reconcile_s = 0.5, deadline_s = 60 }}
        """
    )
    secrets = {"REDIS_PASSWORD": PASSWORD, "STORE_ACCESS_KEY": KEYS.access_key, "STORE_SECRET_KEY": KEYS.secret_key}
    environ = os.environ | {f"ECHO_QUEUE_{name}": value for name, value in secrets.items()}
    environ |= {"ECHO_QUEUE_CONFIG": str(path), "HOME": str(tmp_path)}
    with shared_redis.client() as client, pytest.MonkeyPatch.context() as patch:
        for name, value in environ.items():
            patch.setenv(name, value)
        client.flushall()
        library.load(client)
        admin = Clients(client, RUN, deadline_s=10.0)
        admin.configure(RunRules(s=1000, batch=1000, pace=False))
        admin.publish(0, Published(Version(0, 0), "manifest", "digest"))
        harness = SubmissionHarness(path, environ, admin, ObjectStore(replace(shared_store, put_once=False), RUN))
        yield harness
        for worker in harness.workers:
            harness.kill(worker)
