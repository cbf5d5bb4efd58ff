"""`echo-queue prepare` makes servers of one's own ready for a run, as often as it is asked, and ends."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from echo_queue.cli.commands import app
from echo_queue.cli.run.prepare import Signed
from echo_queue.config.loading import load
from echo_queue.connections import verdict
from echo_queue.connections.connect import connect_redis
from echo_queue.connections.secrets import StoreKeys
from echo_queue.connections.storage.object_store import ObjectStore
from echo_queue.errors import ConfigError, ServiceError
from echo_queue.launch.servers.redis_server import RedisServer
from echo_queue.launch.servers.s3_server import S3Server
from echo_queue.queue import Caller, LearnerQueue, RunRules

TOML = """
[run]
name = "mine"
dir = "{dir}"
[redis]
url = "redis://127.0.0.1:{port}/0"
username = "{username}"
[store]
url = "{store}"
bucket = "mine"
"""


class OwnServers:
    """A Redis without functions and users of ours, and a store with a bucket."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        keys = StoreKeys("PREPARETESTKEY000000", "s" * 40)
        self.redis, self.store = RedisServer(directory / "redis"), S3Server(directory / "s3", keys)
        self.environ = {"ECHO_QUEUE_STORE_ACCESS_KEY": keys.access_key, "ECHO_QUEUE_STORE_SECRET_KEY": keys.secret_key}
        self.redis.start()
        self.store.start()
        ObjectStore(self.store.endpoint("mine"), "mine").create_bucket()

    def toml(self, username: str = "") -> Path:
        path = self.directory / "run.toml"
        values = {"dir": self.directory / "run", "port": self.redis.port, "store": self.store.url}
        path.write_text(TOML.format(username=username, **values), encoding="utf-8")
        return path


@pytest.fixture
def servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[OwnServers]:
    servers = OwnServers(tmp_path)
    for name, value in servers.environ.items():
        monkeypatch.setenv(name, value)
    yield servers
    servers.redis.stop()
    servers.store.stop()


def prepare(path: Path) -> str:
    done = CliRunner().invoke(app, ["prepare", str(path)], catch_exceptions=False)
    assert done.exit_code == 0
    return " ".join(done.output.split())


def test_a_learner_begins_on_servers_that_were_prepared(servers: OwnServers) -> None:
    config = load(servers.toml())
    with connect_redis(config, "monitor") as client, pytest.raises(ServiceError, match="echo-queue prepare"):
        Caller(client, "mine", 0.5).ask("status")
    told = prepare(servers.toml())
    assert f"Redis at redis://127.0.0.1:{servers.redis.port}/0: the queue's functions are loaded" in told
    assert "bucket mine can be read, written and listed" in told
    assert "every role is Redis user default" in told
    learner = LearnerQueue(Caller.connect(config, "learner", 5.0))
    assert learner.resume(RunRules.of(config)).lineage == 1
    prepare(servers.toml())
    assert LearnerQueue(Caller.connect(config, "learner", 5.0)).resume(RunRules.of(config)).lineage == 2


@pytest.mark.parametrize("role", ["worker", "run"])
def test_a_machine_is_warned_of_servers_that_were_not_prepared(
    servers: OwnServers, monkeypatch: pytest.MonkeyPatch, role: str
) -> None:
    monkeypatch.setenv("ECHO_QUEUE_PROMPTS__SOURCE", "reasoning-gym:chain_sum")
    monkeypatch.setenv("ECHO_QUEUE_PROMPTS__OPTIONS", '{"size": 3, "seed": 1}')

    def checked() -> str:
        done = CliRunner().invoke(app, ["config", "check", str(servers.toml()), "--for", role])
        return " ".join(done.output.split())

    told = checked()
    assert f"! redis.url: nobody has prepared redis://127.0.0.1:{servers.redis.port}/0 for run mine" in told
    prepare(servers.toml())
    assert "nobody has prepared" not in checked()


def test_roles_without_a_redis_user_are_named(servers: OwnServers) -> None:
    with servers.redis.client() as client:
        client.execute_command("ACL", "SETUSER", "my-admin", "on", "nopass", "~*", "&*", "+@all")
        client.execute_command("ACL", "SETUSER", "my-worker", "on", "nopass", "+ping")
        told = prepare(servers.toml("my-{role}"))
        assert all(f"my-{role}" in told for role in ("submitter", "learner", "monitor", "celery"))
        assert "my-worker" not in told and "echo-queue redis-users" in told
        for role in ("submitter", "learner", "monitor", "celery"):
            client.execute_command("ACL", "SETUSER", f"my-{role}", "on", "nopass", "+ping")
        assert "Redis has a user for each role" in prepare(servers.toml("my-{role}"))


def test_what_weakens_a_promise_is_told_once(
    servers: OwnServers, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verdict, "_said", set())
    with caplog.at_level(logging.INFO):
        prepare(servers.toml())
    told = [record.getMessage() for record in caplog.records if "two learners" in record.getMessage()]
    assert len(told) == 1 and "If-None-Match" in told[0]
    warning, note = (logging.LogRecord("", level, "", 0, told[0], None, None) for level in (30, 20))
    assert Signed().format(warning) == f"! {told[0]}" and Signed().format(note) == told[0]


def test_embedded_services_have_nothing_to_prepare(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(f'[run]\nname = "r"\ndir = "{tmp_path}"\n', encoding="utf-8")
    with pytest.raises(ConfigError, match="embedded services need no preparation"):
        CliRunner().invoke(app, ["prepare", str(tmp_path / "run.toml")], catch_exceptions=False)
