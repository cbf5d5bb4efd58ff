"""The server of a measurement, and what its main thread spent."""

import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from echo_queue.launch.servers.redis_server import RedisServer
from echo_queue.queue import library

SETTINGS = ("--maxclients", "20000")


@contextmanager
def serving(program: Path | None = None, fsync: str = "everysec") -> Iterator[RedisServer]:
    """Yields a server with the queue's functions; nothing of it is left afterwards."""
    with tempfile.TemporaryDirectory() as directory:
        server = RedisServer(Path(directory), program, settings=(*SETTINGS, "--appendfsync", fsync))
        server.start()
        try:
            with server.client() as client:
                library.load(client)
            yield server
        finally:
            server.stop()


@dataclass(frozen=True)
class Moment:
    """The server's work so far: seconds of its main thread and calls of each command; and its connections now."""

    at_s: float
    busy_s: float
    commands: int
    calls: Mapping[str, int]
    connections: int


def moment(server: RedisServer) -> Moment:
    with server.client() as client:
        stats: Any = client.info("commandstats")
        connections = int(client.info("clients")["connected_clients"])
        commands = int(client.info("stats")["total_commands_processed"])
    calls = {name.removeprefix("cmdstat_"): int(one["calls"]) for name, one in stats.items()}
    return Moment(time.monotonic(), busy_s(server.pid), commands, calls, connections)


def busy_s(pid: int | None) -> float:
    """Returns the processor's seconds of a process's main thread. Time that it waits for a processor does not count."""
    return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[0]) / 1e9


def name_of(server: RedisServer) -> str:
    with server.client() as client:
        info: Any = client.info("server")
    return f"{info.get('server_name', 'redis')} {info.get('valkey_version', info['redis_version'])}"
