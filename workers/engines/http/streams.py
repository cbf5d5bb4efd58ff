"""Reads the server's streams in one thread, and passes their events on to the engine's own thread.

Each stream ends with exactly one last event: a chunk with a finish, or the error that ended it. A stream that was cut
may end without a last event.
"""

import asyncio
from collections.abc import AsyncIterator, Collection, Iterator, Mapping
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, NamedTuple

import httpx2

from echo_queue.errors import EchoQueueError
from workers.engines.http.server import CONNECT_S, Server, StreamChunk

PATH = "/inference/v1/generate"
LEAST_S = 1e-4
CLOSE_S = 5.0


class StreamEvent(NamedTuple):
    """A chunk of a stream, or the error that ended it."""

    stream: str
    outcome: StreamChunk | EchoQueueError

    @property
    def last(self) -> bool:
        return not isinstance(self.outcome, StreamChunk) or self.outcome.finish is not None


class Streams:
    """The streams of one server, at most `most` at once; others wait for their turn.

    `silence_s`: a stream that is silent for so long is broken. Public methods are for the engine's thread.
    """

    def __init__(self, server: Server, silence_s: float, most: int) -> None:
        self._server, self._silence_s = server, silence_s
        timeout, unlimited = httpx2.Timeout(silence_s, connect=CONNECT_S), httpx2.Limits()
        self._http = httpx2.AsyncClient(headers=server.headers, timeout=timeout, limits=unlimited, trust_env=False)
        self._events: SimpleQueue[StreamEvent] = SimpleQueue()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._waiting: set[str] = set()
        self._room = asyncio.Semaphore(most)
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, name="stream thread", daemon=True)
        self._thread.start()

    def begin(self, stream: str, request: Mapping[str, Any]) -> None:
        """Begins a stream. Its name `stream` must be new to the server."""
        body = {"request_id": stream, "stream": True, **request}
        self._loop.call_soon_threadsafe(self._start, stream, body)

    def events(self, wait_s: float) -> Iterator[StreamEvent]:
        """Yields the events since the last call; waits at most `wait_s` for the first one."""
        if self._events.empty():
            try:
                yield self._events.get(timeout=max(wait_s, LEAST_S))
            except Empty:
                return
        for _ in range(self._events.qsize()):
            yield self._events.get_nowait()

    def whole(self, stream: str, request: Mapping[str, Any]) -> Iterator[StreamChunk]:
        """Yields all chunks of a stream, which must be the only one. Raises the error that ended it, if any."""
        self.begin(stream, request)
        while True:
            for event in self.events(self._silence_s):
                if not isinstance(event.outcome, StreamChunk):
                    raise event.outcome
                yield event.outcome
                if event.last:
                    return

    def abort(self, streams: list[str]) -> None:
        """Makes streams end soon, each with its last event. Raises the errors of `Server.abort`."""
        self._loop.call_soon_threadsafe(self._forget, streams)
        if streams:
            self._server.abort(streams)

    def cut(self, streams: list[str]) -> None:
        """Closes the streams' connections, which makes the server end them."""
        self._loop.call_soon_threadsafe(self._cut, streams)

    def close(self) -> None:
        """Cuts all streams and ends the thread."""
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop)
        self._thread.join(timeout=CLOSE_S)
        if not self._thread.is_alive():
            self._loop.close()

    def _start(self, stream: str, body: Mapping[str, Any]) -> None:
        """Stream thread: starts the task that reads a stream."""
        task = self._tasks[stream] = self._loop.create_task(self._read(stream, body))
        task.add_done_callback(lambda _: self._tasks.pop(stream, None))
        self._waiting.add(stream)

    def _forget(self, streams: list[str]) -> None:
        """Stream thread: cuts those streams that the server was not asked for yet."""
        for stream in self._waiting.intersection(streams):
            self._events.put(StreamEvent(stream, self._server.away("was not asked")))
            self._cut([stream])

    def _cut(self, streams: Collection[str]) -> None:
        """Stream thread: cancels the tasks of these streams."""
        self._waiting.difference_update(streams)
        for stream in streams:
            if stream in self._tasks:
                self._tasks[stream].cancel()

    async def _stop(self) -> None:
        try:
            self._cut(list(self._tasks))
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)
            await self._http.aclose()
        finally:
            self._loop.stop()

    async def _read(self, stream: str, body: Mapping[str, Any]) -> None:
        finish = None
        try:
            async with self._room:
                self._waiting.discard(stream)
                async for chunk in self._chunks(body):
                    finish = chunk.finish
                    self._events.put(StreamEvent(stream, chunk))
            if finish is None:
                raise self._server.away("ended a stream in the middle")
        except EchoQueueError as error:
            self._end_by(stream, finish, error)
        except httpx2.HTTPError as error:
            self._end_by(stream, finish, self._server.away(f"broke a connection: {error!r}"))

    async def _chunks(self, body: Mapping[str, Any]) -> AsyncIterator[StreamChunk]:
        async with self._http.stream("POST", f"{self._server.url}{PATH}", json=body) as response:
            if response.status_code != 200:
                raise self._server.refusal(PATH, response.status_code, await response.aread())
            async for line in response.aiter_lines():
                if (chunk := self._server.chunk(line)) is not None:
                    yield chunk

    def _end_by(self, stream: str, finish: str | None, error: EchoQueueError) -> None:
        if finish is None:
            self._events.put(StreamEvent(stream, error))
