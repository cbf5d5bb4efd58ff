"""Follows what the server generates, all streams in one thread, and tells it to the engine's own thread.

Each stream ends with exactly one event that says how: a chunk with a finish, or the error that broke it off. One that
was cut off may end without.
"""

import asyncio
from collections.abc import AsyncIterator, Collection, Iterator, Mapping
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, NamedTuple

import httpx2

from echo_queue.errors import EchoQueueError
from workers.engines.http.server import CONNECT_S, Chunk, Server

PATH = "/inference/v1/generate"
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
        timeout, unlimited = httpx2.Timeout(silence_s, connect=CONNECT_S), httpx2.Limits()
        self._http = httpx2.AsyncClient(headers=server.headers, timeout=timeout, limits=unlimited, trust_env=False)
        self._events: SimpleQueue[Event] = SimpleQueue()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._waiting: set[str] = set()
        self._room = asyncio.Semaphore(most)
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, name="streams", daemon=True)
        self._thread.start()

    def begin(self, stream: str, request: Mapping[str, Any]) -> None:
        """`stream` names it, and no other one that the server knows of."""
        body = {"request_id": stream, "stream": True, **request}
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

    def cut(self, streams: list[str]) -> None:
        """Their connections are closed, at which the server ends them."""
        self._loop.call_soon_threadsafe(self._cut, streams)

    def close(self) -> None:
        """All that is under way is cut off."""
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop)
        self._thread.join(timeout=CLOSE_S)
        if not self._thread.is_alive():
            self._loop.close()

    def _start(self, stream: str, body: Mapping[str, Any]) -> None:
        task = self._tasks[stream] = self._loop.create_task(self._follow(stream, body))
        task.add_done_callback(lambda _: self._tasks.pop(stream, None))
        self._waiting.add(stream)

    def _forget(self, streams: list[str]) -> None:
        """Those that the server was not asked for yet."""
        for stream in self._waiting.intersection(streams):
            self._events.put(Event(stream, self._server.away("was not asked")))
            self._cut([stream])

    def _cut(self, streams: Collection[str]) -> None:
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

    async def _follow(self, stream: str, body: Mapping[str, Any]) -> None:
        finish = None
        try:
            async with self._room:
                self._waiting.discard(stream)
                async for chunk in self._chunks(body):
                    finish = chunk.finish
                    self._events.put(Event(stream, chunk))
            if finish is None:
                raise self._server.away("ended a stream in the middle")
        except EchoQueueError as error:
            self._break(stream, finish, error)
        except httpx2.HTTPError as error:
            self._break(stream, finish, self._server.away(f"broke off: {error!r}"))

    async def _chunks(self, body: Mapping[str, Any]) -> AsyncIterator[Chunk]:
        async with self._http.stream("POST", f"{self._server.url}{PATH}", json=body) as response:
            if response.status_code != 200:
                raise self._server.refusal(PATH, response.status_code, await response.aread())
            async for line in response.aiter_lines():
                if (chunk := self._server.chunk(line)) is not None:
                    yield chunk

    def _break(self, stream: str, finish: str | None, error: EchoQueueError) -> None:
        if finish is None:
            self._events.put(Event(stream, error))
