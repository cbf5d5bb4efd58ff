"""A TCP proxy in front of Redis or an S3 server that spoils what a test chooses, one request at a time.

- It knows where requests and replies begin and end (`resp`, `http`), so a fault meets exactly one of them, in a
  pipeline too; what came before it is answered as always, what came after it never happens.
- `choose` sees every request and names its fault, or None; `Next` and `Randomly` are the two usual choosers.
- `lead_to` makes another server the one behind it, as a fail-over does: open connections are cut.
"""

import random
import selectors
import socket
import struct
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from types import TracebackType
from typing import Protocol, Self

CHUNK_BYTES = 1 << 18
LINGER_NONE = struct.pack("ii", 1, 0)
"""A socket closed with it sends RST, and forgets what was still to be sent."""
TRICKLE_PIECES = 8


@dataclass(frozen=True)
class Request:
    """One request, whole. `name` is its command or method, `about` its function or path; `raw` is what is forwarded."""

    name: str
    about: str
    raw: bytes
    length: int
    """Bytes that it took on its way here."""
    pushes: bool = False
    """True if the server sends without requests from now on."""

    def __str__(self) -> str:
        return f"{self.name} {self.about}"


class Framing(Protocol):
    """The framing of one protocol: the ends of its requests and replies."""

    def request(self, data: bytearray) -> Request | None:
        """The first whole request in `data`; None while bytes are missing."""

    def reply(self, data: bytearray, to: Request) -> int | None:
        """The length of the first whole reply in `data`; None while bytes are missing."""

    def leave(self, data: bytearray) -> bytes:
        """Returns what a client waits for before it sends the rest of the request in `data`; empty if nothing."""


class Raw:
    """Any protocol in which the client speaks first: after that it is only copied."""

    def request(self, data: bytearray) -> Request | None:
        return Request("", "", bytes(data), len(data), pushes=True) if data else None

    def reply(self, data: bytearray, to: Request) -> int | None:
        return len(data) or None

    def leave(self, data: bytearray) -> bytes:
        return b""


class Then(Enum):
    """The fate of the connection."""

    goes_on = "goes on"
    closes = "closes"
    resets = "resets"
    hangs = "hangs"
    """It stays open, and the server answers no more."""


def as_it_is(reply: bytes) -> bytes:
    return reply


@dataclass(frozen=True)
class Fault:
    """A fault that happens to one request. With the default fields the request passes unharmed."""

    name: str
    wait_s: float = 0.0
    """The seconds before anything else happens."""
    forward: bool = True
    """True if the server sees the request."""
    cut_short: bool = False
    """The server sees the first half, and the connection ends."""
    answer: bytes | None = None
    """Sent in place of the server's reply."""
    alter: Callable[[bytes], bytes] = as_it_is
    """The change to the server's reply."""
    trickle_s: float = 0.0
    """The reply takes so long, in pieces."""
    then: Then = Then.goes_on


Choose = Callable[[Request], Fault | None]

# Faults of the network, of either protocol. Before: the server saw nothing; after: it did what was asked.
REPLY_LOST = Fault("reply lost", answer=b"", then=Then.closes)
RESET_BEFORE = Fault("reset before", forward=False, answer=b"", then=Then.resets)
RESET_AFTER = Fault("reset after", answer=b"", then=Then.resets)
CLOSED_BEFORE = Fault("closed before", forward=False, answer=b"", then=Then.closes)
REQUEST_CUT = Fault("request cut short", cut_short=True, answer=b"", then=Then.closes)
REPLY_CUT = Fault("reply cut short", alter=lambda reply: reply[: len(reply) // 2], then=Then.closes)
DELAYED = Fault("delayed", wait_s=0.01)
TRICKLED = Fault("trickled", trickle_s=0.02)
SILENT_BEFORE = Fault("never answered", forward=False, answer=b"", then=Then.hangs)
SILENT_AFTER = Fault("done and never answered", answer=b"", then=Then.hangs)

QUICK = (REPLY_LOST, RESET_BEFORE, RESET_AFTER, CLOSED_BEFORE, REQUEST_CUT, REPLY_CUT, DELAYED, TRICKLED)
PASSES = (DELAYED, TRICKLED)
"""These cost time, and nothing else."""
HANGING = (SILENT_BEFORE, SILENT_AFTER)
"""These are noticed by the client's own timeout only."""


def any_request(request: Request) -> bool:
    return True


class Next:
    """The next `times` requests that fit meet `fault`."""

    def __init__(self, fault: Fault, times: int = 1, fits: Callable[[Request], bool] = any_request) -> None:
        self.left = times
        self._fault = fault
        self._fits = fits
        self._lock = threading.Lock()

    def __call__(self, request: Request) -> Fault | None:
        with self._lock:
            if self.left == 0 or not self._fits(request):
                return None
            self.left -= 1
            return self._fault


class OfEach:
    """The first time that each request which fits is made, it meets `fault`."""

    def __init__(self, fault: Fault, fits: Callable[[Request], bool] = any_request) -> None:
        self._fault = fault
        self._fits = fits
        self._seen: set[str] = set()
        self._lock = threading.Lock()

    def __call__(self, request: Request) -> Fault | None:
        with self._lock:
            if str(request) in self._seen or not self._fits(request):
                return None
            self._seen.add(str(request))
            return self._fault


class Always:
    """Every request that fits meets `fault`."""

    def __init__(self, fault: Fault, fits: Callable[[Request], bool] = any_request) -> None:
        self._fault = fault
        self._fits = fits

    def __call__(self, request: Request) -> Fault | None:
        return self._fault if self._fits(request) else None


class Randomly:
    """Each request that fits meets one of `faults` with probability `share`, as `seed` draws."""

    def __init__(
        self, seed: int, share: float, faults: Sequence[Fault], fits: Callable[[Request], bool] = any_request
    ) -> None:
        self._draw = random.Random(seed)
        self._share = share
        self._faults = faults
        self._fits = fits
        self._lock = threading.Lock()

    def __call__(self, request: Request) -> Fault | None:
        if not self._fits(request):
            return None
        with self._lock:
            return self._draw.choice(self._faults) if self._draw.random() < self._share else None


class Proxy:
    """Listens on `port` of `host` and forwards to `upstream` of the loopback interface. `met` counts faults by name."""

    def __init__(self, framing: Framing, upstream: int, choose: Choose | None = None, host: str = "127.0.0.1") -> None:
        self.framing = framing
        self.upstream = upstream
        self.choose = choose
        self.met: Counter[str] = Counter()
        self.requests = 0
        self._listener = socket.create_server((host, 0))
        self.port: int = self._listener.getsockname()[1]
        self._links: set[Link] = set()
        self._flows = threading.Event()
        self._flows.set()
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()
        self.release()

    def hold(self) -> None:
        """Bytes of connections that are only copied stay here, until `release` or for ever."""
        self._flows.clear()

    def release(self) -> None:
        self._flows.set()

    def flow(self) -> None:
        """Returns when bytes may pass."""
        self._flows.wait()

    def lead_to(self, upstream: int) -> None:
        """Makes that port the server, from now on."""
        self.upstream = upstream
        self.cut()

    def cut(self) -> None:
        """Ends all open connections."""
        with self._lock:
            links = list(self._links)
        for link in links:
            link.cut()

    def fault_of(self, request: Request) -> Fault | None:
        fault = self.choose(request) if self.choose else None
        with self._lock:
            self.requests += 1
            if fault:
                self.met[fault.name] += 1
        return fault

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, suppress(OSError), socket.create_connection(("127.0.0.1", self.upstream)) as server:
            for each in (client, server):
                each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            link = Link(self, client, server)
            with self._lock:
                self._links.add(link)
            try:
                link.run()
            finally:
                with self._lock:
                    self._links.discard(link)


class Link:
    """One client's connection and the one to the server that belongs to it; a single thread serves both."""

    def __init__(self, proxy: Proxy, client: socket.socket, server: socket.socket) -> None:
        self._proxy = proxy
        self._client, self._server = client, server
        self._asked, self._answered = bytearray(), bytearray()
        self._pending: deque[tuple[Request, Fault]] = deque()
        self._ended = False
        """No further request is looked at."""
        self._pushes = False

    def run(self) -> None:
        with selectors.DefaultSelector() as waiting:
            waiting.register(self._client, selectors.EVENT_READ, self._asked)
            waiting.register(self._server, selectors.EVENT_READ, self._answered)
            while True:
                for key, _ in waiting.select():
                    data = key.fileobj.recv(CHUNK_BYTES)  # type: ignore[union-attr]
                    if not data:
                        return self._client.sendall(self._answered)  # a reply that ends with its connection
                    key.data.extend(data)
                if self._pushes:
                    self._copy()
                    continue
                self._forward()
                if not self._reply():
                    return None

    def cut(self) -> None:
        for each in (self._client, self._server):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def _forward(self) -> None:
        """All whole requests that came, up to one that ends the connection."""
        while not self._ended and (request := self._proxy.framing.request(self._asked)):
            del self._asked[: request.length]
            fault = self._proxy.fault_of(request) or Fault("none")
            self._pending.append((request, fault))
            self._ended = fault.then is not Then.goes_on or fault.cut_short
            time.sleep(fault.wait_s)
            if fault.forward:
                self._server.sendall(request.raw[: len(request.raw) // 2] if fault.cut_short else request.raw)
        if leave := self._proxy.framing.leave(self._asked):
            self._client.sendall(leave)

    def _reply(self) -> bool:
        """All replies that are there, in their order. False once the connection has ended."""
        while self._pending:
            request, fault = self._pending[0]
            reply = b""
            if fault.forward and not fault.cut_short:
                length = self._proxy.framing.reply(self._answered, request)
                if length is None:
                    return True
                reply = bytes(self._answered[:length])
                del self._answered[:length]
            self._pending.popleft()
            self._send(fault.alter(reply) if fault.answer is None else fault.answer, fault.trickle_s)
            if fault.then is not Then.goes_on:
                self._end(fault.then)
                return False
            if request.pushes:
                self._pushes = True
                self._copy()
        return True

    def _send(self, reply: bytes, seconds: float) -> None:
        if not seconds:
            return self._client.sendall(reply)
        size = max(1, -(-len(reply) // TRICKLE_PIECES))
        for start in range(0, len(reply), size):
            self._client.sendall(reply[start : start + size])
            time.sleep(seconds / TRICKLE_PIECES)
        return None

    def _end(self, then: Then) -> None:
        if then is Then.resets:
            self._client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_NONE)
        if then is Then.hangs:
            while self._client.recv(CHUNK_BYTES):
                pass

    def _copy(self) -> None:
        self._proxy.flow()
        self._server.sendall(self._asked)
        self._client.sendall(self._answered)
        self._asked.clear()
        self._answered.clear()
