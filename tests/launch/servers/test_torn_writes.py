"""A server killed in the middle of a write: the move that was cut off has never happened, at no later start either."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from echo_queue.launch.servers.redis_server import RedisServer, User

ADMIN = User("admin", "secret", "~* &* +@all")
MOVE = "for place = 1, #ARGV do redis.call('SET', ARGV[place], place) end"


@pytest.fixture(params=("valkey", pytest.param("redis-server", marks=pytest.mark.slow)))
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RedisServer]:
    program = None if request.param == "valkey" else shutil.which(request.param)
    if request.param != "valkey" and program is None:
        pytest.skip(f"no {request.param} on the path")
    started = RedisServer(tmp_path, Path(program) if program else None, (ADMIN,))
    started.start()
    yield started
    started.stop()


def move(server: RedisServer, *names: str) -> None:
    """Sets these keys in one atomic step."""
    with server.client() as client:
        client.eval(MOVE, 0, *names)


def present(server: RedisServer) -> list[str]:
    with server.client() as client:
        return sorted(key.decode() for key in client.keys("*"))


def cut(server: RedisServer, place: Callable[[bytes], int]) -> None:
    """Kills the server; of what it has written remains what is before `place`."""
    server.kill()
    (written,) = server.dir.glob("appendonlydir/*.incr.aof")
    data = written.read_bytes()
    written.write_bytes(data[: place(data)])


@pytest.mark.parametrize(
    "place",
    [
        pytest.param(lambda data: data.rindex(b"MULTI") + 3, id="in-the-transactions-first-word"),
        pytest.param(lambda data: data.rindex(b"MULTI") + 7, id="after-its-first-word"),
        pytest.param(lambda data: data.rindex(b"second") + 3, id="inside-its-second-write"),
        pytest.param(lambda data: data.rindex(b"third") - 20, id="between-two-writes"),
        pytest.param(lambda data: data.rindex(b"EXEC") + 2, id="in-its-last-word"),
    ],
)
def test_half_a_move_is_none_whatever_comes_after_it(server: RedisServer, place: Callable[[bytes], int]) -> None:
    move(server, "before", "too")
    move(server, "first", "second", "third")
    cut(server, place)
    assert server.start()
    assert present(server) == ["before", "too"]
    move(server, "after", "that")
    server.kill()
    assert server.start()
    assert present(server) == ["after", "before", "that", "too"]


def test_a_server_is_found_at_its_port_after_its_file_was_mended(server: RedisServer) -> None:
    port = server.port
    move(server, "first", "second")
    cut(server, lambda data: data.rindex(b"second") + 3)
    server.start()
    assert server.port == port
    assert server.start() is False, "it is the one that runs"
