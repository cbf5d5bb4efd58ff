"""A client that connects is told which settings of Redis lose data or weaken a promise, with the line to change."""

import logging
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
import redis
from kombu import Connection

from echo_queue.config import Config
from echo_queue.config import Redis as RedisSettings
from echo_queue.connections import redis_check, verdict
from echo_queue.connections.connect import connect_redis
from echo_queue.connections.endpoints import CELERY_PREFIX
from echo_queue.connections.redis_check import RedisFacts, judge, read_facts, unread
from echo_queue.connections.secrets import Role
from echo_queue.errors import ServiceError
from echo_queue.launch.servers.inspection import inspect
from echo_queue.launch.servers.redis_server import RedisServer
from echo_queue.queue.acl import rules
from echo_queue.records import Version
from tests.queue.clients import Clients
from tests.queue.queue_harness import QueueHarness
from tests.servers.redis import KINDS, start_redis
from tests.source_code import ROOT
from tests.waiting import wait_until

Configure = Callable[..., Config]
SAFE = {"appendonly": "yes", "appendfsync": "always", "maxmemory-policy": "noeviction", "aof-load-truncated": "no"}
OWN = RedisSettings(url="redis://host")
ROLES: tuple[Role, ...] = ("worker", "submitter", "learner", "admin")
TABLE = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module", params=KINDS)
def shared_server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """A server whose configuration the tests change."""
    server = start_redis(request.param, tmp_path_factory.mktemp("set-badly"))
    yield server
    server.stop()


@pytest.fixture
def server(shared_server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[RedisServer]:
    """The server as the embedded one is set; what was said before does not count."""
    monkeypatch.setattr(verdict, "_said", set())
    with shared_server.client() as client:
        for name, value in SAFE.items():
            client.config_set(name, value)
    yield shared_server
    with shared_server.client() as client:
        for name, value in SAFE.items():
            client.config_set(name, value)


def change(server: RedisServer, **settings: str) -> None:
    with server.client() as client:
        for name, value in settings.items():
            client.config_set(name.replace("_", "-"), value)


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize(
    "setting", ["appendonly no yes", "maxmemory-policy allkeys-lru noeviction", "appendfsync no always"]
)
def test_a_server_that_loses_data_is_refused_with_the_line_to_change(
    configure: Configure, server: RedisServer, role: Role, setting: str
) -> None:
    word, value, better = setting.split()
    change(server, **{word: value})
    config = configure(redis={"url": server.url})
    with pytest.raises(ServiceError, match=rf"{word} is {value}") as refused:
        connect_redis(config, role)
    (problem,) = refused.value.problems
    assert f"`{word} {better}` into redis.conf, and `redis-cli CONFIG SET {word} {better}`" in problem.fix
    assert problem in inspect(config).refusals, "`config check` and `run` say the same"
    assert connect_redis(config, "monitor").ping(), "who only looks may look"


def test_what_weakens_a_promise_is_said_once_and_stops_nothing(
    configure: Configure, server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    change(server, appendfsync="everysec", maxmemory_policy="volatile-lru", aof_load_truncated="yes")
    config = configure(redis={"url": server.url})
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            connect_redis(config, "learner").close()
    said = [record.getMessage() for record in caplog.records]
    words = ("maxmemory-policy is volatile-lru", "appendfsync is everysec", "aof-load-truncated is yes")
    assert [next((word for word in words if word in line), line) for line in said] == list(words)
    assert [problem.where for problem in inspect(config).warnings[:3]] == ["redis.url"] * 3


def test_only_a_service_that_keeps_every_write_itself_needs_no_append_only_file() -> None:
    """Replicas do what a lazy fsync would not, but a primary that starts again empty makes them empty as well."""
    durable, replicated = (
        RedisSettings(url="redis://host", **how) for how in ({"durable": True}, {"wait_replicas": 1})
    )
    without = RedisFacts(append_only=False, eviction="noeviction", replicas=2)
    lazy = RedisFacts(append_only=True, settings={"appendfsync": "no"}, replicas=2)
    assert [len(judge(without, how).refusals) for how in (OWN, replicated, durable)] == [1, 1, 0]
    assert [len(judge(lazy, how).refusals) for how in (OWN, replicated, durable)] == [1, 0, 0]
    assert len(judge(RedisFacts(eviction="allkeys-random"), durable).refusals) == 1, "it keeps nothing that is evicted"


def test_an_old_version_a_replica_and_a_fail_over_nobody_waits_for_are_told() -> None:
    assert "6.2.14" in str(judge(RedisFacts(version=(6, 2, 14)), OWN).refusals)
    assert not judge(RedisFacts("Valkey", (7, 2, 4)), OWN).refusals
    assert "its primary" in str(judge(RedisFacts(is_replica=True), OWN).refusals)
    assert "redis.wait_replicas" in str(judge(RedisFacts(replicas=1), OWN).warnings)


def test_a_full_server_stops_those_who_submit_and_the_others_wait(configure: Configure, server: RedisServer) -> None:
    config = configure(redis={"url": server.url})
    change(server, maxmemory="1mb")
    try:
        assert redis_check.FULL in inspect(config).refusals
        assert redis_check.FULL in inspect(config, ("submitter", "celery")).refusals
        assert redis_check.FULL in inspect(config, ("learner",)).warnings
        connect_redis(config, "learner").close()
    finally:
        change(server, maxmemory="0")


def test_of_a_server_that_is_too_old_no_setting_is_asked_for() -> None:
    assert list(unread(RedisFacts(version=(6, 2, 14), unread=("appendfsync",)), OWN)) == []


def test_a_real_replica_is_refused(configure: Configure, server: RedisServer, tmp_path: Path) -> None:
    replica = RedisServer(tmp_path / "replica", server.program)
    replica.start()
    with replica.client() as client:
        client.replicaof("127.0.0.1", server.port)
    with pytest.raises(ServiceError, match="names a replica"):
        connect_redis(configure(redis={"url": replica.url}), "learner")
    replica.stop()


@pytest.mark.parametrize("role", ["worker", "submitter", "learner", "monitor"])
def test_each_role_may_read_what_it_needs_and_none_the_configuration(server: RedisServer, role: Role) -> None:
    """`CONFIG GET` would show passwords, and INFO numbers of keys that are not a worker's."""
    with server.client() as admin:
        admin.execute_command("ACL", "SETUSER", role, "reset", "on", ">pw", *_words(rules(role, "run", "eq-celery")))
        version = read_facts(admin, "run").version
    client = redis.Redis(port=server.port, username=role, password="pw", protocol=2)
    facts = read_facts(client, "run")
    assert (facts.version, facts.is_replica, facts.in_cluster) == (version, False, False)
    if role in ("worker", "submitter"):
        assert facts.unread == ("INFO",)
    else:
        assert (facts.append_only, facts.eviction, facts.unread) == (True, "noeviction", redis_check.CONFIGURATION)
        (said,) = unread(facts, OWN)
        assert list(unread(facts, OWN.model_copy(update={"durable": True}))) == []
        assert "appendfsync" in said.what and "it is not known whether writes are kept" in said.what


def test_a_user_without_any_right_to_look_is_told_so(server: RedisServer) -> None:
    with server.client() as admin:
        admin.execute_command("ACL", "SETUSER", "blind", "reset", "on", ">pw", "~*", "+hget")
    client = redis.Redis(port=server.port, username="blind", password="pw", protocol=2)
    (said,) = unread(read_facts(client, "run"), OWN)
    assert said.what.startswith("INFO cannot be read")


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_fits_one_node_of_a_cluster_and_the_wrong_node_names_the_right_one(
    configure: Configure, tmp_path: Path, kind: str
) -> None:
    program = shutil.which("redis-server") if kind == "redis" else None
    if kind == "redis" and program is None:
        pytest.skip("no redis-server on the path")
    nodes = [
        RedisServer(tmp_path / name, Path(program) if program else None, (), ("--cluster-enabled", "yes"))
        for name in ("one", "two")
    ]
    for node in nodes:
        node.start()
    owner, other = nodes
    with owner.client() as first, other.client() as second:
        slot = int(first.execute_command("CLUSTER KEYSLOT", "{test}"))  # type: ignore[arg-type]
        first.execute_command("CLUSTER ADDSLOTS", slot)
        second.execute_command("CLUSTER ADDSLOTS", *(number for number in range(16384) if number != slot))
        second.execute_command("CLUSTER MEET", "127.0.0.1", owner.port)
        for client in (first, second):
            wait_until(lambda of=client: "cluster_state:ok" in _raw(of, "CLUSTER INFO"), "the cluster")  # type: ignore[misc]
    with pytest.raises(ServiceError, match=rf"name the node that does: 127\.0\.0\.1:{owner.port}"):
        connect_redis(configure(redis={"url": other.url}), "learner")
    client = connect_redis(configure(redis={"url": owner.url}), "learner")
    assert "one node of a cluster" in str(inspect(configure(redis={"url": owner.url})).warnings)
    harness = QueueHarness(Clients(client, "test", deadline_s=10.0), prompts=4)
    harness.complete(harness.lease(2))
    (drained, lineage) = (harness.queue.resume(Version(0, 0), 0), 1)
    assert drained.lineage == lineage and len(harness.queue.drain(lineage, 2).groups) == 2
    assert harness.queue.audit().ok
    prefix = {"global_keyprefix": CELERY_PREFIX.format(run="test")}
    with Connection(owner.url, transport_options=prefix) as broker, closing(broker.SimpleQueue("celery")) as channel:
        channel.put({"chunk": 1})
        assert channel.get(timeout=120).payload == {"chunk": 1}, "the broker's keys are in the same slot"
    for node in nodes:
        node.stop()


def test_the_document_names_every_setting_that_is_checked() -> None:
    (section,) = re.findall(r"### What Redis must be\n(.*?)\n### ", TABLE, re.DOTALL)
    for name in (*redis_check.CONFIGURATION, "appendonly", "maxmemory-policy", "redis.durable", "redis.wait_replicas"):
        assert f"`{name}" in section, name


def _words(text: str) -> list[str]:
    """ACL rules as words; a selector in parentheses is one word."""
    return re.findall(r"\([^)]*\)|\S+", text)


def _raw(client: redis.Redis, command: str) -> str:
    client.response_callbacks.pop("CLUSTER INFO", None)
    return str(client.execute_command(command))
