"""A master and its replica, with a link between them that can stall, and a proxy that leads clients to the master.

`fail_over` is the worst kind: the master is killed while its replica lags, and the replica takes its place.
"""

import time
from contextlib import ExitStack
from pathlib import Path
from typing import Self

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from echo_queue.launch.servers.redis_server import RedisServer
from echo_queue.queue import library
from tests.faults.proxy.proxy import Proxy, Raw
from tests.faults.proxy.resp import Resp

DEADLINE_S = 120.0


class Replicated:
    """`master` serves, `replica` follows it through `link`; clients connect to `port`."""

    def __init__(self, directory: Path, program: Path | None) -> None:
        self._directory, self._program = directory, program
        self._servers = 0
        self._left = ExitStack()

    def __enter__(self) -> Self:
        self.master = self._server()
        with self.master.client() as client:
            library.load(client)
        self.front = self._left.enter_context(Proxy(Resp(), self.master.port))
        self.link, self.replica = self._replica()
        return self

    def __exit__(self, *_: object) -> None:
        self._left.close()

    @property
    def port(self) -> int:
        return self.front.port

    def client(self) -> "redis.Redis":
        """Through the proxy, with no retries of its own."""
        return redis.Redis(port=self.port, protocol=2, retry=Retry(NoBackoff(), 0), socket_timeout=15.0)

    def stall(self) -> None:
        """Stops the link: the replica has all writes until now, and gets none from now on."""
        self._catch_up()
        self.link.hold()

    def fail_over(self) -> None:
        """Makes the replica the master; writes that had not reached it are gone."""
        self.master.kill()
        self.link.cut()
        with self.replica.client() as client:
            client.replicaof("NO", "ONE")
        self.master = self.replica
        self.front.lead_to(self.master.port)

    def attach(self) -> None:
        """Another replica, which is caught up."""
        self.link, self.replica = self._replica()

    def _server(self) -> RedisServer:
        self._servers += 1
        server = RedisServer(self._directory / f"redis-{self._servers}", self._program)
        server.start()
        self._left.callback(server.stop)
        with server.client() as client:
            client.config_set("repl-diskless-sync-delay", 0)
        return server

    def _replica(self) -> tuple[Proxy, RedisServer]:
        link, replica = self._left.enter_context(Proxy(Raw(), self.master.port)), self._server()
        with replica.client() as client:
            client.replicaof("127.0.0.1", link.port)
        self._catch_up()
        return link, replica

    def _catch_up(self) -> None:
        """Returns when the replica holds all that was written before."""
        with self.master.client() as client:
            give_up = time.monotonic() + DEADLINE_S
            pipe = client.pipeline(transaction=False)
            while pipe.set("caught", "up").wait(1, 100).execute()[1] < 1:
                if time.monotonic() > give_up:
                    raise TimeoutError("the replica never caught up")
