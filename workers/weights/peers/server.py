"""Serves verified chunks to peers over HTTP (`http1` describes the protocol), each as soon as it has arrived here.

- The server speaks first, and proves that it is a peer.
- A request needs a token for its very path, and only parts in the part cache are served: a path is looked up in the
  cache, never opened as a file.
- Bytes go from the page cache to the socket (`sendfile`). Uploads stay below a cap, if there is one. A few streams are
  served at a time; a peer beyond that gets status 503, with the time after which to ask again.
- Every head received and every piece sent has a deadline: a slow client costs a thread for seconds only.
- Whoever has shown no valid token is a stranger. Strangers are left soon, and make room for every new connection, so
  that no number of them keeps a peer out.
"""

import logging
import socket
import threading
import time
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass

from echo_queue.errors import ServiceError
from workers.weights.cache.part_cache import PartCache
from workers.weights.cache.part_file import PartFile
from workers.weights.peers.http1 import Garbled, Gone, Request, Silent, Wire, answer_head, parse_request
from workers.weights.peers.peer_auth import PeerAuth, Refused

log = logging.getLogger(__name__)

STREAMS = 8
CONNECTIONS = 64
STRANGERS_PER_ADDRESS = 8
"""The number of connections of one address that may be open before they have shown a token. Workers of one machine
share an address, and each of them shows its token at once."""
STRANGER_S = 2.5
"""A stranger's first head must begin within this time, and be whole within as much again."""
HEAD_DEADLINE_S = 5.0
IDLE_S = 30.0
"""A peer's connection may be idle for this time between two requests."""
LOOK_S = 1.0
"""A stream that waits for its next chunk checks at this interval whether its reader is still connected."""
READER_S = 30.0
"""A reader that does not take `BURST_BYTES` in this time is dropped."""
BURST_BYTES = 1 << 20
BURST_S = 0.1
"""Below a low cap, a stream sends no more at once than in this time, so that its reader is never long without bytes."""
ANNOUNCED_WAIT_S = 0.25
"""The longest wait for a part of a growing route: its reader may have heard of the part before this worker did."""
RETRY_AFTER_S = 1
ACCEPT_S = 0.5


class Meter:
    """Limits uploads to `bytes_per_s` on average, `burst_bytes` at once; 0: no limit. Any thread may use it."""

    def __init__(self, bytes_per_s: float) -> None:
        self._bytes_per_s = bytes_per_s
        self._free_at = 0.0
        self._lock = threading.Lock()

    @property
    def burst_bytes(self) -> int:
        """The bytes that one stream may send at once."""
        return min(BURST_BYTES, round(BURST_S * self._bytes_per_s)) if self._bytes_per_s else BURST_BYTES

    def take(self, count: int, stop: threading.Event) -> None:
        """Waits until `count` bytes may be sent, or `stop` is set."""
        if not self._bytes_per_s:
            return
        with self._lock:
            now = time.monotonic()
            begin = max(self._free_at, now - self.burst_bytes / self._bytes_per_s)
            self._free_at = begin + count / self._bytes_per_s
            pause_s = self._free_at - now
        if pause_s > 0:
            stop.wait(pause_s)


@dataclass(eq=False)
class Visitor:
    """A connection to the server. `known`: it has shown a valid token; until then it is a stranger's."""

    wire: Wire
    host: str
    known: bool = False


def who_leaves(visitors: Collection[Visitor], host: str) -> Visitor | None:
    """Returns the stranger that a new connection from `host` pushes out, if any. `visitors`: the oldest first."""
    strangers = [visitor for visitor in visitors if not visitor.known]
    neighbours = [stranger for stranger in strangers if stranger.host == host]
    if len(neighbours) >= STRANGERS_PER_ADDRESS:
        return neighbours[0]
    return strangers[0] if strangers and len(visitors) >= CONNECTIONS else None


class PeerServer:
    """Serves the parts in `part_cache` as the worker `name`; `start` it, and `close` it before the part cache."""

    def __init__(
        self,
        part_cache: PartCache,
        tokens: PeerAuth,
        name: str,
        *,
        host: str = "",
        port: int = 0,
        upload_mbit: float = 0.0,
        streams: int = STREAMS,
    ) -> None:
        self.name = name
        self.sent = 0
        """Bytes given to peers."""
        self._part_cache = part_cache
        self._tokens = tokens
        self._meter = Meter(upload_mbit * 125_000)
        self._free = threading.BoundedSemaphore(streams)
        self._stop = threading.Event()
        self._visitors: dict[Visitor, None] = {}
        """All connections, the oldest first."""
        self._lock = threading.Lock()
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, port), family=family, backlog=CONNECTIONS)
        self._listener.settimeout(ACCEPT_S)
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._accept, name="peer server", daemon=True)

    @property
    def connections(self) -> int:
        """The number of connections that are open."""
        return len(self._visitors)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Ends all streams and the server's thread."""
        self._stop.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # ends a wait for the next connection
        if self._thread.is_alive():
            self._thread.join(timeout=2 * ACCEPT_S)
        self._listener.close()
        with self._lock:
            visitors = tuple(self._visitors)
        for visitor in visitors:
            visitor.wire.shut()

    def _accept(self) -> None:
        """Server thread: accepts connections, and starts a thread for each."""
        while not self._stop.is_set():
            try:
                connection, (host, *_) = self._listener.accept()
            except TimeoutError:
                continue
            except OSError as error:
                if not self._stop.is_set():
                    log.warning("cannot take a peer's connection: %s", error)
                    self._stop.wait(ACCEPT_S)
                continue
            try:
                self._take_in(connection, host)
            except (OSError, RuntimeError) as error:  # the peer has gone already, or no more threads can be started
                log.warning("cannot talk to a peer: %s", error)
                connection.close()

    def _take_in(self, connection: socket.socket, host: str) -> None:
        visitor = Visitor(Wire(connection), host)
        with self._lock:
            leaves = who_leaves(self._visitors, host)
            if leaves is not None:
                del self._visitors[leaves]
            full = len(self._visitors) >= CONNECTIONS
            if not full:
                self._visitors[visitor] = None
        if leaves is not None:
            leaves.wire.shut()
        if full:
            with suppress(Silent, Gone):
                greeting = self._tokens.greeting(self.name)
                visitor.wire.send(greeting + answer_head(503, retry_after=RETRY_AFTER_S), ACCEPT_S)
            visitor.wire.close()
            return
        try:
            threading.Thread(target=self._converse, args=(visitor,), name="peer", daemon=True).start()
        except RuntimeError:
            self._forget(visitor)
            raise

    def _forget(self, visitor: Visitor) -> None:
        with self._lock:
            self._visitors.pop(visitor, None)

    def _converse(self, visitor: Visitor) -> None:
        """Peer thread: answers requests until the connection ends."""
        wire = visitor.wire
        try:
            wire.send(self._tokens.greeting(self.name), STRANGER_S)
            while not self._stop.is_set() and self._answer(visitor):
                pass
        except Garbled:
            with suppress(Silent, Gone):
                wire.send(answer_head(400), HEAD_DEADLINE_S)
        except (Silent, Gone) as error:
            log.debug("a peer was left: %s", error)
        finally:
            self._forget(visitor)
            wire.close()

    def _answer(self, visitor: Visitor) -> bool:
        """Peer thread: answers one request; returns whether the connection stays open."""
        wire = visitor.wire
        head = wire.head(HEAD_DEADLINE_S, IDLE_S) if visitor.known else wire.head(STRANGER_S)
        if head is None:
            return False
        request = parse_request(head)
        try:
            self._tokens.check(request.token, self.name, request.path)
        except Refused:
            wire.send(answer_head(401), HEAD_DEADLINE_S)
            return False
        visitor.known = True
        file = self._part_cache.find(request.key, ANNOUNCED_WAIT_S)
        if file is None and self._part_cache.grows(request.key):
            wire.send(answer_head(503, retry_after=RETRY_AFTER_S), HEAD_DEADLINE_S)
        elif file is None or request.start > len(file.part.chunks):
            wire.send(answer_head(404), HEAD_DEADLINE_S)
        elif request.method == "HEAD":
            wire.send(_good(file, request), HEAD_DEADLINE_S)
        elif self._free.acquire(blocking=False):
            try:
                return self._stream(wire, file, request)
            finally:
                self._free.release()
        else:
            wire.send(answer_head(503, retry_after=RETRY_AFTER_S), HEAD_DEADLINE_S)
        return True

    def _stream(self, wire: Wire, file: PartFile, request: Request) -> bool:
        """Peer thread: sends a part from the requested chunk on.

        Returns False if the part's end was not reached; the connection then ends.
        """
        part, at = file.part, request.start
        wire.send(_good(file, request), HEAD_DEADLINE_S, more=file.landed(at) > at)
        most = max(1, self._meter.burst_bytes // part.chunk_bytes)
        while at < len(part.chunks):
            end = min(file.wait(at, LOOK_S), at + most)
            if self._stop.is_set():
                return False
            if end == at:
                if not file.expected or wire.ended():
                    return False
                continue
            start, count = part.start(at), part.start(end - 1) + part.length(end - 1) - part.start(at)
            self._meter.take(count, self._stop)
            try:
                with file.opened() as opened:
                    wire.send_file(opened, start, count, READER_S)
            except ServiceError as error:
                log.warning("cannot serve %s: %s", part.key, error)
                return False
            self.sent += count
            at = end
        return True


def _good(file: PartFile, request: Request) -> bytes:
    part, start = file.part, request.start
    length = part.size - part.start(start) if start < len(part.chunks) else 0
    return answer_head(200, length, x_landed=file.landed(start))
