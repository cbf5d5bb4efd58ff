"""Brings routes into the part cache, from peers or the store, while its server passes on what has landed already.

- All parts that are known of a route have their place before others are told of this worker.
- `bring` returns when every part is whole and verified, or raises by its deadline; what has landed stays.
- One route at a time may be prefetched, while nothing is brought; once it is to be brought, that goes on from there.
- Once closed it brings nothing more, and nothing that is still on its way holds up the end of the process.
"""

import logging
import socket
import threading
import time
from collections import Counter
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass

from echo_queue.config import Weights
from echo_queue.errors import EchoQueueError, Problem, ServiceError
from echo_queue.queue import Joined, Peer, PeerDirectory, Upstream
from echo_queue.queue.types import Complaint
from echo_queue.storage.object_store import ObjectStore
from echo_queue.weights.manifest import Part, Route
from workers.weights.peers import sources
from workers.weights.peers.access import Tokens
from workers.weights.peers.download import LINGER_S, PEER, RouteDownload
from workers.weights.peers.part_cache import PartCache
from workers.weights.peers.server import PeerServer
from workers.weights.peers.source_selector import Memory, SourceSelector, leaving
from workers.weights.peers.sources import STORE, Store

log = logging.getLogger(__name__)

HOLD_S = 2.0
HOLD_PAUSE_S = 0.2


@dataclass(frozen=True)
class Brought:
    """What one route took: bytes from the store and from peers, prefetched ones included, and seconds since it was to
    be brought."""

    route: str
    store_bytes: int
    peer_bytes: int
    seconds: float


class PeerExchange:
    """`secret`: what the run's workers share (`RunKeys.token_secret`); empty: the store alone. Closed before the cache.

    `fetched` counts bytes by source ("store", "peer") since the start, `sent` those given to peers.
    """

    def __init__(
        self,
        peers: PeerDirectory,
        store: ObjectStore,
        part_cache: PartCache,
        worker: str,
        settings: Weights,
        *,
        secret: bytes,
    ) -> None:
        self.fetched: Counter[str] = Counter()
        self.address = ""
        """host:port at which peers reach this worker; empty if they cannot."""
        self._directory = peers
        self._store = Store(store)
        self._part_cache = part_cache
        self._worker = worker
        self._settings = settings
        self._memory = Memory()
        self._leaving = False
        self._closed = threading.Event()
        self._failed: set[str] = set()
        self._deliveries: set[RouteDownload] = set()
        self._ahead: RouteDownload | None = None
        self._bringing = 0
        self._lock = threading.Lock()
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
        began = time.monotonic()
        with self._lock:
            self._bringing += 1
        try:
            with self._part_cache.hold(route), self._delivery(route.name) as delivery:
                delivery.add(route.parts)
                delivery.complete()
                before = self._take_over(route, deadline_s)
                if not delivery.whole:
                    self._carry(delivery, deadline_s - (time.monotonic() - began))
                fetched = before + delivery.fetched
        finally:
            with self._lock:
                self._bringing -= 1
        return Brought(route.name, fetched[STORE], fetched[PEER], time.monotonic() - began)

    def prefetch(self, name: str, parts: Sequence[Part], deadline_s: float) -> RouteDownload | None:
        """Begins to fetch a route of which these parts are known, one at least; more may be added. None while there is
        other work.

        It ends when nothing was added for `deadline_s`. Raises `ServiceError` if there is no room.
        """
        with self._lock:
            if self._bringing or self._ahead is not None or self._leaving or self._closed.is_set():
                return None
            delivery = self._delivery(name)
            try:
                delivery.grow(parts[0])
                delivery.add(parts)
                threading.Thread(target=self._run_ahead, args=(delivery, deadline_s), name="ahead", daemon=True).start()
            except BaseException:
                delivery.close()
                self._part_cache.discard(delivery.keys)
                raise
            self._ahead = delivery
            return delivery

    def make_way(self, routes: Collection[Route]) -> None:
        """What is prefetched and belongs to none of these routes is given up, and its room in the part cache."""
        with self._lock:
            ahead = self._ahead
            wanted = {part.key for route in routes for part in route.parts}
            if ahead is None or (ahead.keys <= wanted and any(route.name == ahead.name for route in routes)):
                return
            self._ahead = None
        ahead.close()
        self._part_cache.discard(ahead.keys - wanted)

    def retire(self) -> None:
        """This worker is leaving: nobody is sent to it any more; who is fed from it goes on until `close`."""
        self._leaving = True
        if self._tokens is not None:
            with suppress(ServiceError):
                self._directory.withdraw(self._worker)

    def close(self) -> None:
        """Ends what it serves and what it fetches. Who is sent here afterwards goes on elsewhere."""
        self._closed.set()
        if self._server is not None:
            self._server.close()
        give_up = time.monotonic() + LINGER_S
        with self._lock:
            deliveries = tuple(self._deliveries)
        for delivery in deliveries:
            delivery.stop()
            delivery.join(give_up)
        self._memory.keep(())

    # Deliveries -------------------------------------------------------------------------------------------------------

    def _delivery(self, name: str) -> RouteDownload:
        return RouteDownload(name, self._part_cache, self.fetched, self._closed)

    def _carry(self, delivery: RouteDownload, deadline_s: float) -> None:
        # Who fails and tries again keeps its place: others may be waiting behind it.
        anew = delivery.untouched and delivery.name not in self._failed
        feeders = self._feeders(delivery.name, deadline_s, anew)
        self._failed.add(delivery.name)
        with self._lock:
            self._deliveries.add(delivery)
        try:
            delivery.run(feeders)
        finally:
            with self._lock:
                self._deliveries.discard(delivery)
            self._memory.keep(feeders.peers())
        self._failed.discard(delivery.name)
        self._memory.learn(feeders.rate())

    def _run_ahead(self, delivery: RouteDownload, deadline_s: float) -> None:
        with delivery:
            try:
                self._carry(delivery, deadline_s)
            except EchoQueueError as error:
                log.info("%s is not prefetched any further: %s", delivery.name, error)

    def _take_over(self, route: Route, deadline_s: float) -> "Counter[str]":
        """Lets what is prefetched of the route come to its end, with all other parts; what it took."""
        with self._lock:
            ahead = self._ahead
        if ahead is None or ahead.name != route.name:
            return Counter()
        self.make_way((route,))
        with self._lock:
            self._ahead = None
        ahead.add(route.parts)
        ahead.complete()
        if not ahead.over.wait(deadline_s):
            ahead.close()
        return ahead.fetched

    # Sources ----------------------------------------------------------------------------------------------------------

    def _feeders(self, route: str, deadline_s: float, anew: bool) -> SourceSelector:
        if self._closed.is_set():
            raise leaving(route)
        joined = self._join(route, self._memory.avoided(), anew) if self._tokens is not None else None
        give_up = time.monotonic() + HOLD_S
        while joined is not None and joined.hold and time.monotonic() < give_up:
            if self._closed.wait(HOLD_PAUSE_S):
                raise leaving(route)
            joined = self._join(route, self._memory.avoided())
        return SourceSelector(
            route,
            self._store,
            self._memory,
            joined,
            join=lambda left: self._join(route, left),
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
        joined = self._directory.join(itself, route, left, anew=anew)
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

    def _peer(self, one: Upstream) -> sources.Peer:
        known = Upstream(one.worker, one.address)
        peer = self._memory.peers.get(known)
        if peer is None:
            assert self._tokens is not None
            peer = sources.Peer(known, self._worker, self._tokens, self._settings.chunk_deadline_s)
            self._memory.peers[known] = peer
        return peer

    def _complain(self, peer: str, reason: Complaint) -> None:
        log.warning("peer %s: %s", peer, reason)
        with suppress(ServiceError):
            self._directory.report(self._worker, peer, reason)

    # Serving ----------------------------------------------------------------------------------------------------------

    def _serve(self, tokens: Tokens) -> PeerServer:
        settings = self._settings
        host = settings.peer_host or own_host(self._directory)
        where = ("::" if ":" in host else "") if settings.peer_host else host
        try:
            server = PeerServer(
                self._part_cache,
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


def own_host(peers: PeerDirectory) -> str:
    """The address of this machine on the way to Redis. Nothing is sent."""
    host, port = peers.server_address()
    if not host:
        return "127.0.0.1"
    family, kind, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as probe:
        probe.connect(place)
        return str(probe.getsockname()[0])
