"""The transport "peers": fetches routes from peers or the store, while a server passes on the chunks that have arrived.

All known parts of a route have their room before the queue sends peers to this worker.
"""

import logging
import socket
import time
from contextlib import suppress
from ipaddress import ip_address

from echo_queue.config import Weights
from echo_queue.connections.storage.object_store import ObjectStore
from echo_queue.errors import Problem, ServiceError
from echo_queue.queue import Joined, Peer, PeerDirectory, Upstream
from echo_queue.queue.types import Complaint
from workers.weights.cache.caching_transport import CachingTransport, open_part_cache
from workers.weights.cache.part_cache import PartCache
from workers.weights.cache.sources import StoreSource, worker_leaving
from workers.weights.peers.peer_addresses import PeerAddresses, Refused
from workers.weights.peers.peer_auth import PeerAuth
from workers.weights.peers.peer_history import PeerHistory
from workers.weights.peers.peer_source import PeerSource
from workers.weights.peers.route_sources import PeerRouteSources
from workers.weights.peers.server import PeerServer
from workers.weights.transport import Site

log = logging.getLogger(__name__)

HOLD_S = 2.0
HOLD_PAUSE_S = 0.2


def open_exchange(site: Site) -> "PeerExchange":
    part_cache = open_part_cache(site.config, site.worker)
    settings = site.config.weights
    return PeerExchange(PeerDirectory(site.caller), site.store, part_cache, site.worker, settings, secret=site.secret)


class PeerExchange(CachingTransport):
    """The transport "peers". `secret`: shared by the run's workers (`RunKeys.token_secret`); empty: the store alone."""

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
        super().__init__(part_cache)
        self.address = ""
        """host:port at which peers reach this worker; empty if they cannot."""
        self._directory = peers
        self._store = StoreSource(store)
        self._worker = worker
        self._settings = settings
        self._history = PeerHistory()
        self._tokens = PeerAuth(secret) if settings.peers and secret else None
        self._server: PeerServer | None = None
        if self._tokens is not None:
            own = own_host(self._directory)
            self._addresses = PeerAddresses(settings.peer_networks, own)
            if settings.reachable:
                self._server = self._serve(self._tokens, own)

    @property
    def sent(self) -> int:
        """Bytes given to peers."""
        return self._server.sent if self._server else 0

    def retire(self) -> None:
        """Leaves all chains, so that no further peer is sent here; peers being served are served until `close`."""
        super().retire()
        if self._tokens is not None:
            with suppress(ServiceError):
                self._directory.withdraw(self._worker)

    def close(self) -> None:
        """Ends serving and fetching; a peer that is sent here afterwards reads another source."""
        self._closed.set()
        if self._server is not None:
            self._server.close()
            log.info("gave %s bytes to peers", f"{self.sent:,}")
        super().close()
        self._history.keep(())

    # Sources ----------------------------------------------------------------------------------------------------------

    def _sources(self, route: str, deadline_s: float, restart: bool) -> PeerRouteSources:
        joined = self._join(route, self._history.avoided(), restart) if self._tokens is not None else None
        give_up = time.monotonic() + HOLD_S
        while joined is not None and joined.hold and time.monotonic() < give_up:
            if self._closed.wait(HOLD_PAUSE_S):
                raise worker_leaving(route)
            joined = self._join(route, self._history.avoided())
        return PeerRouteSources(
            route,
            self._store,
            self._history,
            joined,
            join=lambda dropped: self._join(route, dropped),
            make=self._peer,
            complain=self._complain,
            deadline_s=deadline_s,
            chunk_deadline_s=self._settings.chunk_deadline_s,
            closed=self._closed,
        )

    def _join(self, route: str, avoided: set[str], restart: bool = False) -> Joined:
        settings = self._settings
        itself = Peer(
            self._worker,
            settings.region,
            self.address,
            round(self._history.rate),
            self._leaf(),
            settings.upload_usd_per_gb,
        )
        joined = self._directory.join(itself, route, avoided, restart=restart)
        if self._retired and itself.leaf != "leaving":  # `retire` was called during the join
            self.retire()
        if self._tokens is not None:
            self._tokens.tune(joined.now_s)
        return joined

    def _leaf(self) -> str:
        """Returns the reason, known to this worker, why no peer should be sent to it; empty if there is none."""
        if self._retired:
            return "leaving"
        if not self.address:
            return "unreachable"
        return "price" if self._settings.upload_usd_per_gb > self._settings.store_usd_per_gb else ""

    def _peer(self, one: Upstream) -> PeerSource:
        known = Upstream(one.worker, one.address)
        peer = self._history.peers.get(known)
        if peer is None:
            assert self._tokens is not None
            peer = PeerSource(known, self._worker, self._tokens, self._addresses, self._settings.chunk_deadline_s)
            self._history.peers[known] = peer
        return peer

    def _complain(self, peer: str, reason: Complaint) -> None:
        log.warning("peer %s: %s", peer, reason)
        with suppress(ServiceError):
            self._directory.report(self._worker, peer, reason)

    # Serving ----------------------------------------------------------------------------------------------------------

    def _serve(self, tokens: PeerAuth, own: str) -> PeerServer:
        settings = self._settings
        host = settings.peer_host or own
        self._check_own(host)
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

    def _check_own(self, host: str) -> None:
        """Raises `ServiceError` for an address of this worker to which no peer would connect.

        A name is not resolved: peers may know another address for it than this machine.
        """
        try:
            ip_address(host)
        except ValueError:
            return
        try:
            self._addresses.check(host)
        except Refused as error:
            fix = "name another one, or its network in weights.peer_networks of all workers"
            raise ServiceError(Problem("weights.peer_host", str(error), fix)) from None


def own_host(peers: PeerDirectory) -> str:
    """Returns this machine's address on the route to Redis. Nothing is sent."""
    host, port = peers.server_address()
    if not host:
        return "127.0.0.1"
    family, kind, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as probe:
        probe.connect(place)
        return str(probe.getsockname()[0])
