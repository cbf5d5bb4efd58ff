"""A client that asks after each round trip how long the server's main thread has worked for it."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Self, TypeVar

import redis

from benchmarks.scale.server import busy_s
from echo_queue.launch.servers.redis_server import RedisServer
from echo_queue.launch.servers.server_process import HOST

T = TypeVar("T")


@dataclass(frozen=True)
class Spent:
    """The server's time in the round trips of a move, in each of which it serves nobody else.

    A move that goes in steps has one for each. Commands that are sent together count as one.
    """

    calls: int
    total_ms: float
    median_ms: float
    longest_ms: float

    @classmethod
    def of(cls, seconds: Iterable[float]) -> Self:
        times = sorted(1000 * one for one in seconds) or [0.0]
        return cls(len(times), round(sum(times), 2), round(times[len(times) // 2], 3), round(times[-1], 3))


class TimedConnection(redis.Connection):
    """Notes the server's time of each round trip."""

    def __init__(self, server: RedisServer, noted: list[float], **settings: Any) -> None:
        super().__init__(**settings)  # type: ignore[no-untyped-call]
        self._server, self._noted = server, noted
        self._begun_s: float | None = None

    def send_packed_command(self, command: Any, check_health: bool = True) -> None:
        self._begun_s = busy_s(self._server.pid)
        super().send_packed_command(command, check_health)  # type: ignore[no-untyped-call]

    def read_response(self, *args: Any, **options: Any) -> Any:
        try:
            return super().read_response(*args, **options)
        finally:
            if self._begun_s is not None:
                self._noted.append(busy_s(self._server.pid) - self._begun_s)
                self._begun_s = None


class TimedClient(redis.Redis):
    """A client of `server`, on which nothing else may run."""

    def __init__(self, server: RedisServer) -> None:
        self._noted: list[float] = []
        pool = redis.ConnectionPool(
            TimedConnection, host=HOST, port=server.port, protocol=2, server=server, noted=self._noted
        )
        super().__init__(connection_pool=pool)

    def spent(self, work: Callable[[], object]) -> Spent:
        """Returns the server's time in the round trips that `work` makes by this client."""
        self._noted.clear()
        work()
        return Spent.of(self._noted)


def each(values: Iterable[T], call: Callable[[T], object]) -> Callable[[], None]:
    """Returns a function that calls `call` with each of the values."""

    def all_calls() -> None:
        for value in values:
            call(value)

    return all_calls
