"""Follows what the server generates, all streams in one thread, and tells it to the engine's own thread.

- Each stream ends with exactly one event that says how: a chunk with a finish, or the error that broke it off.
- One connection for each stream, by HTTP/1.0: an answer is lines until its end, and whether that came too early is
  seen by its finish.
"""

import asyncio
import ssl
from collections.abc import Iterator, Mapping
from contextlib import closing
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import orjson

from echo_queue.errors import EchoQueueError
from workers.engines.http.server import CONNECT_S, Chunk, Server

PATH = "/inference/v1/generate"
LONGEST_LINE = 1 << 24
LEAST_S = 1e-4
CLOSE_S = 5.0


class Event(NamedTuple):
    stream: str
    said: Chunk | EchoQueueError

    @property
    def last(self) -> bool:
        return not isinstance(self.said, Chunk) or self.said.finish is not None


class Streams:
    """At most `most` at once, others wait for their turn. `silence_s`: a stream that says nothing for so long broke."""

    def __init__(self, server: Server, silence_s: float, most: int) -> None:
        self._server, self._silence_s = server, silence_s
        self._url = urlsplit(server.url)
        self._events: SimpleQueue[Event] = SimpleQueue()
        self._waiting: dict[str, asyncio.Task[None]] = {}
        self._running: set[asyncio.Task[None]] = set()
        self._room = asyncio.Semaphore(most)
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, name="streams", daemon=True)
        self._thread.start()

    def begin(self, stream: str, request: Mapping[str, Any]) -> None:
        """`stream` names it, and no other one that the server knows of."""
        body = orjson.dumps({"request_id": stream, "stream": True, **request})
        self._loop.call_soon_threadsafe(self._start, stream, body)

    def events(self, wait_s: float) -> Iterator[Event]:
        """What has been told since; the first is waited for."""
        if self._events.empty():
            try:
                yield self._events.get(timeout=max(wait_s, LEAST_S))
            except Empty:
                return
        for _ in range(self._events.qsize()):
            yield self._events.get_nowait()

    def whole(self, stream: str, request: Mapping[str, Any]) -> Iterator[Chunk]:
        """Of the only stream there is. Raises what broke it off."""
        self.begin(stream, request)
        while True:
            for event in self.events(self._silence_s):
                if not isinstance(event.said, Chunk):
                    raise event.said
                yield event.said
                if event.last:
                    return

    def abort(self, streams: list[str]) -> None:
        """They end soon, by an event of their own. Raises what `Server.abort` does."""
        self._loop.call_soon_threadsafe(self._forget, streams)
        if streams:
            self._server.abort(streams)

    def close(self) -> None:
        """All that is under way is cut off."""
        self._loop.call_soon_threadsafe(self._stop)
        self._thread.join(timeout=CLOSE_S)
        if not self._thread.is_alive():
            self._loop.close()

    def _start(self, stream: str, body: bytes) -> None:
        task = self._waiting[stream] = self._loop.create_task(self._follow(stream, body))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    def _forget(self, streams: list[str]) -> None:
        """Those that the server was not asked for yet."""
        for stream in streams:
            if stream in self._waiting:
                self._waiting[stream].cancel()

    def _stop(self) -> None:
        for task in self._running:
            task.cancel()
        self._loop.call_soon(self._loop.stop)

    async def _follow(self, stream: str, body: bytes) -> None:
        finish = None
        try:
            async with self._room:
                del self._waiting[stream]
                async with asyncio.timeout(CONNECT_S) as deadline:
                    reader, writer = await self._connect()
                    with closing(writer):
                        writer.write(self._head(body) + body)
                        deadline.reschedule(self._loop.time() + self._silence_s)
                        await self._check(reader)
                        while line := await reader.readline():
                            deadline.reschedule(self._loop.time() + self._silence_s)
                            if (chunk := self._server.chunk(line)) is not None:
                                finish = chunk.finish
                                self._events.put(Event(stream, chunk))
            if finish is None:
                raise self._server.away("ended a stream in the middle")
        except EchoQueueError as error:
            self._break(stream, finish, error)
        except asyncio.CancelledError:
            self._waiting.pop(stream, None)
            self._break(stream, finish, self._server.away("was not asked, or cut off"))
        except (OSError, ValueError) as error:  # a line that is too long, a timeout
            self._break(stream, finish, self._server.away(f"broke off: {error!r}"))

    def _break(self, stream: str, finish: str | None, error: EchoQueueError) -> None:
        if finish is None:
            self._events.put(Event(stream, error))

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        safe = self._url.scheme == "https"
        port = self._url.port or (443 if safe else 80)
        context = ssl.create_default_context() if safe else None
        return await asyncio.open_connection(self._url.hostname, port, ssl=context, limit=LONGEST_LINE)

    def _head(self, body: bytes) -> bytes:
        lines = [f"POST {self._url.path}{PATH} HTTP/1.0", f"Host: {self._url.netloc}"]
        lines += [f"{name}: {value}" for name, value in self._server.headers.items()]
        lines += ["Content-Type: application/json", f"Content-Length: {len(body)}", "", ""]
        return "\r\n".join(lines).encode()

    async def _check(self, reader: asyncio.StreamReader) -> None:
        """Reads the head of an answer. Raises `Away` or `Refused` unless tokens follow."""
        status = (await reader.readline()).split()
        while (await reader.readline()).strip():
            pass
        if len(status) < 2 or not status[1].isdigit():
            raise self._server.away(f"says {status!r}, which is not HTTP")
        if status[1] != b"200":
            raise self._server.refusal(PATH, int(status[1]), await reader.read())
