"""A `redis.Redis` whose commands wait in a hub. Only the transport differs: redis-py makes and packs each command, and
reads its reply.

Connections are taken and given back as by redis-py's pool, so a worker has as many as threads of it wait at once.
"""

from collections.abc import Sequence
from typing import Any

import hiredis
import redis
from redis._parsers.base import BaseParser
from redis.client import Pipeline
from redis.exceptions import InvalidResponse

from benchmarks.scale.hub import Hub

READ_BYTES = 1 << 16
Command = tuple[tuple[Any, ...], dict[str, Any]]
"""The words of a command, and the options with which redis-py reads its reply."""


class HubConnection:
    """One connection, which redis-py opens."""

    def __init__(self, hub: Hub, pool: Any) -> None:
        self._opened = pool.make_connection()
        self._opened.connect()
        self._hub = hub
        self._socket = self._opened._sock
        self._socket.settimeout(None)
        self._reader = hiredis.Reader(protocolError=InvalidResponse, replyError=BaseParser.parse_error)
        hub.watch(self._socket.fileno())

    def send(self, commands: Sequence[tuple[Any, ...]]) -> None:
        self._socket.sendall(b"".join(part for command in commands for part in self._opened.pack_command(*command)))

    def read_response(self, disable_decoding: bool = False) -> Any:
        """Waits for the next reply and returns it; raises it if it is an error."""
        while (reply := self._reader.gets()) is False:
            self._hub.wait_readable(self._socket.fileno())
            read = self._socket.recv(READ_BYTES)
            if not read:
                raise redis.ConnectionError("the server closed the connection")
            self._reader.feed(read)
        if isinstance(reply, Exception):
            raise reply
        return reply


class HubClient(redis.Redis):
    """The client of one worker."""

    def __init__(self, hub: Hub, port: int) -> None:
        super().__init__(port=port, protocol=2)
        self._hub = hub
        self._free: list[HubConnection] = []

    def execute_command(self, *args: Any, **options: Any) -> Any:
        (answer,) = self.answers([(args, options)])
        if isinstance(answer, Exception):
            raise answer
        return answer

    def pipeline(self, transaction: bool = True, shard_hint: str | None = None) -> "HubPipeline":
        return HubPipeline(self, transaction, shard_hint)

    def answers(self, commands: Sequence[Command]) -> list[Any]:
        """Sends the commands in one round trip. Returns what redis-py's methods return, or the error of each."""
        connection = self._free.pop() if self._free else HubConnection(self._hub, self.connection_pool)
        connection.send([args for args, _ in commands])
        answers = [self._answer(connection, args[0], options) for args, options in commands]
        self._free.append(connection)
        return answers

    def _answer(self, connection: HubConnection, name: str, options: dict[str, Any]) -> Any:
        try:
            return self.parse_response(connection, name, **options)  # type: ignore[no-untyped-call]
        except redis.ResponseError as error:
            return error


class HubPipeline(Pipeline):
    """A pipeline without transactions, as the queue's clients use it."""

    def __init__(self, client: HubClient, transaction: bool, shard_hint: str | None) -> None:
        super().__init__(client.connection_pool, client.response_callbacks, transaction, shard_hint)
        self._client = client

    def execute(self, raise_on_error: bool = True) -> list[Any]:
        commands: Any = self.command_stack
        self.reset()
        answers = self._client.answers([(args, options) for args, options in commands])
        if raise_on_error:
            self.raise_first_error(commands, answers)  # type: ignore[no-untyped-call]
        return answers
