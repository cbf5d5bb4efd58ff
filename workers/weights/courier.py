"""Brings routes into the spool, from peers or the store, while its server passes on what has landed already.

- All parts of a route have their place before the first byte is fetched, and before others are told of this worker.
- Parts come one after another, each in one stream; the next is asked for a moment before the one before it ends, so
  that no line is idle in between.
- `bring` returns when every part is whole and verified, or raises by its deadline; what has landed stays.
- Once closed it brings nothing more, and nothing that is still on its way holds up the end of the process.
"""

import logging
import socket
import threading
import time
from collections import Counter, deque
from collections.abc import Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from typing import Any

from echo_queue.config import Weights
from echo_queue.errors import Problem, ServiceError
from echo_queue.queue import Joined, Peer, Queue, Upstream
from echo_queue.queue.types import Complaint
from echo_queue.store import ObjectStore
from echo_queue.weights.manifest import Route
from workers.weights import upstream
from workers.weights.feeders import Feeders, Memory, leaving
from workers.weights.server import PeerServer
from workers.weights.spool import PartFile, Spool
from workers.weights.tokens import Tokens
from workers.weights.upstream import STORE, Left, Source, Store

log = logging.getLogger(__name__)

LANES = 2
AHEAD_CHUNKS = 16
"""So many chunks before the end of a part the next one is asked for."""
HOLD_S = 2.0
HOLD_PAUSE_S = 0.2
WAIT_S = 0.5
LINGER_S = 2.0
"""So long the end waits for threads that are still fetching; one that hears nothing is left to its own deadline."""
PEER = "peer"

Turns = deque[tuple[PartFile, PartFile | None]]
"""Parts to be fetched, each with the one before it."""


@dataclass(frozen=True)
class Brought:
    """What one route took: bytes from the store and from peers, and seconds."""

    route: str
    store_bytes: int
    peer_bytes: int
    seconds: float


class Courier:
    """`secret`: what the run's workers share (`Trust.token_secret`); empty: the store alone. Close it before the spool.

    `fetched` counts bytes by source ("store", "peer") since the start, `sent` those given to peers.
    """

    def __init__(
        self, queue: Queue, store: ObjectStore, spool: Spool, worker: str, settings: Weights, *, secret: bytes
    ) -> None:
        self.fetched: Counter[str] = Counter()
        self.address = ""
        """host:port at which peers reach this worker; empty if they cannot."""
        self._queue = queue
        self._store = Store(store)
        self._spool = spool
        self._worker = worker
        self._settings = settings
        self._memory = Memory()
        self._leaving = False
        self._closed = threading.Event()
        self._lanes: set[threading.Thread] = set()
        self._failed: set[str] = set()
        self._tokens = Tokens(secret) if settings.peers and secret else None
        self._server: PeerServer | None = None
        if self._tokens is not None and settings.reachable:
            self._server = self._serve(self._tokens)

    @property
    def sent(self) -> int:
        return self._server.sent if self._server else 0

    def bring(self, route: Route, deadline_s: float) -> Brought:
        """Raises `DeadlineError`, `Damaged` if the store's own bytes are wrong, `ServiceError` if there is no room, or
        once this worker is leaving."""
        began, before = time.monotonic(), self.fetched.copy()
        with ExitStack() as stack:
            stack.enter_context(self._spool.hold(route))
            files = [self._spool.open(part) for part in route.parts]
            missing = [file for file in files if not file.whole]
            for file in missing:
                file.expect(True)
                stack.callback(file.expect, False)
            if missing:
                # Who fails and tries again keeps its place: others may be waiting behind it.
                anew = all(not file.next for file in files) and route.name not in self._failed
                feeders = self._feeders(route, deadline_s, anew)
                self._failed.add(route.name)
                stack.callback(lambda: self._memory.keep(feeders.peers()))
                self._fetch(missing, feeders)
                self._failed.discard(route.name)
                self._memory.learn(feeders.rate())
        counts = self.fetched - before
        return Brought(route.name, counts[STORE], counts[PEER], time.monotonic() - began)

    def retire(self) -> None:
        """This worker is leaving: nobody is sent to it any more; who is fed from it goes on until `close`."""
        self._leaving = True
        if self._tokens is not None:
            with suppress(ServiceError):
                self._queue.withdraw(self._worker)

    def close(self) -> None:
        """Ends what it serves and what it fetches. Who is sent here afterwards goes on elsewhere."""
        self._closed.set()
        if self._server is not None:
            self._server.close()
        give_up = time.monotonic() + LINGER_S
        for lane in tuple(self._lanes):
            lane.join(timeout=max(0.0, give_up - time.monotonic()))
        self._memory.keep(())

    # Sources ----------------------------------------------------------------------------------------------------------

    def _feeders(self, route: Route, deadline_s: float, anew: bool) -> Feeders:
        if self._closed.is_set():
            raise leaving(route.name)
        joined = self._join(route.name, self._memory.avoided(), anew) if self._tokens is not None else None
        give_up = time.monotonic() + HOLD_S
        while joined is not None and joined.hold and time.monotonic() < give_up:
            if self._closed.wait(HOLD_PAUSE_S):
                raise leaving(route.name)
            joined = self._join(route.name, self._memory.avoided())
        return Feeders(
            route.name,
            self._store,
            self._memory,
            joined,
            join=lambda left: self._join(route.name, left),
            make=self._peer,
            complain=self._complain,
            deadline_s=deadline_s,
            chunk_deadline_s=self._settings.chunk_deadline_s,
            closed=self._closed,
        )

    def _join(self, route: str, left: set[str], anew: bool = False) -> Joined:
        settings = self._settings
        itself = Peer(
            self._worker,
            settings.region,
            self.address,
            round(self._memory.rate),
            self._leaf(),
            settings.upload_usd_per_gb,
        )
        joined = self._queue.join(itself, route, left, anew=anew)
        if self._leaving and itself.leaf != "leaving":  # it was asked to leave in between
            self.retire()
        if self._tokens is not None:
            self._tokens.tune(joined.now_s)
        return joined

    def _leaf(self) -> str:
        """Why nobody should be fed from this worker, as far as it knows itself."""
        if self._leaving:
            return "leaving"
        if not self.address:
            return "unreachable"
        return "price" if self._settings.upload_usd_per_gb > self._settings.store_usd_per_gb else ""

    def _peer(self, one: Upstream) -> upstream.Peer:
        known = Upstream(one.worker, one.address)
        peer = self._memory.peers.get(known)
        if peer is None:
            assert self._tokens is not None
            peer = upstream.Peer(known, self._worker, self._tokens, self._settings.chunk_deadline_s)
            self._memory.peers[known] = peer
        return peer

    def _complain(self, peer: str, reason: Complaint) -> None:
        log.warning("peer %s: %s", peer, reason)
        with suppress(ServiceError):
            self._queue.report(self._worker, peer, reason)

    # Parts ------------------------------------------------------------------------------------------------------------

    def _fetch(self, files: Sequence[PartFile], feeders: Feeders) -> None:
        turns = deque(zip(files, [None, *files], strict=False))
        stop = threading.Event()
        ends: list[Future[None]] = []
        try:
            for _ in files[:LANES]:
                ends.append(self._start_lane(turns, feeders, stop))
            waiting = set(ends)
            while waiting:
                done, waiting = wait(waiting, WAIT_S, FIRST_EXCEPTION)
                for end in done:
                    end.result(timeout=0)
                if waiting:
                    feeders.check()
        except BaseException:
            stop.set()
            if not self._closed.is_set():  # else `close` waits for them
                wait(ends, LINGER_S)
            raise

    def _start_lane(self, turns: Turns, feeders: Feeders, stop: threading.Event) -> "Future[None]":
        """A daemon: the interpreter's own pools are waited for when it exits, whatever they wait for themselves."""
        end: Future[None] = Future()
        lane = threading.Thread(target=self._run_lane, args=(turns, feeders, stop, end), name="courier", daemon=True)
        self._lanes.add(lane)
        lane.start()
        return end

    def _run_lane(self, turns: Turns, feeders: Feeders, stop: threading.Event, end: "Future[None]") -> None:
        try:
            while not stop.is_set() and (turn := _next(turns)) is not None:
                self._fill(*turn, feeders, stop)
            end.set_result(None)
        except BaseException as error:
            stop.set()
            end.set_exception(error)
        finally:
            self._lanes.discard(threading.current_thread())

    def _fill(self, file: PartFile, before: PartFile | None, feeders: Feeders, stop: threading.Event) -> None:
        while before is not None and before.next < len(before.part.chunks) - AHEAD_CHUNKS:
            before.wait(before.next, WAIT_S)
            feeders.check()
            if stop.is_set():
                return
        while not file.filling.acquire(timeout=WAIT_S):
            feeders.check()
            if stop.is_set():
                return
        try:
            while not file.whole and not stop.is_set():
                feeders.check()
                self._draw(file, feeders, stop)
        finally:
            file.filling.release()

    def _draw(self, file: PartFile, feeders: Feeders, stop: threading.Event) -> None:
        """From one source, until it ends or another is the first."""
        source: Source = feeders.first
        kind = STORE if source.name == STORE else PEER
        chunks: Any = source.chunks(file)
        with closing(chunks):
            try:
                for length in chunks:
                    self.fetched[kind] += length
                    if not feeders.took(source, file, length) or stop.is_set():
                        return
            except Left as why:
                self._closed.wait(feeders.leave(source, why))

    # Serving ----------------------------------------------------------------------------------------------------------

    def _serve(self, tokens: Tokens) -> PeerServer:
        settings = self._settings
        host = settings.peer_host or own_host(self._queue)
        where = ("::" if ":" in host else "") if settings.peer_host else host
        try:
            server = PeerServer(
                self._spool,
                tokens,
                self._worker,
                host=where,
                port=settings.peer_port,
                upload_mbit=settings.upload_mbit,
            )
        except OSError as error:
            what = f"cannot listen on port {settings.peer_port}: {error.strerror}"
            raise ServiceError(Problem("weights.peer_port", what, "name a free one, or 0 for any")) from None
        server.start()
        self.address = f"[{host}]:{server.port}" if ":" in host else f"{host}:{server.port}"
        return server


def _next(turns: Turns) -> tuple[PartFile, PartFile | None] | None:
    try:
        return turns.popleft()
    except IndexError:
        return None


def own_host(queue: Queue) -> str:
    """The address of this machine on the way to Redis. Nothing is sent."""
    pool: Any = queue.client.connection_pool
    host, port = pool.get_master_address() if hasattr(pool, "get_master_address") else _address(pool.connection_kwargs)
    if not host:
        return "127.0.0.1"
    family, kind, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as probe:
        probe.connect(place)
        return str(probe.getsockname()[0])


def _address(settings: dict[str, Any]) -> tuple[str, int]:
    if "path" in settings:
        return "", 0
    return settings.get("host", "localhost"), settings.get("port", 6379)
