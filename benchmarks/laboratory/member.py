"""The part of a worker that handles weights: part cache, peer exchange and heartbeat, built as in the product."""

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.laboratory.events import report
from echo_queue.config import Weights
from echo_queue.connections.storage.object_store import ObjectStore
from echo_queue.queue import Caller, PeerDirectory, WorkerQueue
from echo_queue.queue.types import Heartbeat, RunKeys
from echo_queue.records import Published, Version
from echo_queue.weights.manifest import Route
from echo_queue.weights.signatures import SignatureVerifier
from workers.weights.cache.caching_transport import FetchedRoute
from workers.weights.cache.part_cache import PartCache
from workers.weights.fetch import VersionFetcher
from workers.weights.key_pinning import PinnedKey
from workers.weights.peers.exchange import PeerExchange
from workers.weights.prefetch import Prefetcher
from workers.weights.staging import Stage
from workers.weights.weight_watcher import WeightWatcher

SECRET = b"laboratory"
CACHE_BYTES = 8 << 30
HEARTBEAT_S = 1.0
DEADLINE_S = 300.0
POLL_S = 0.005


class RecordingExchange(PeerExchange):
    """A peer exchange that records each fetched route, and when the last one was whole."""

    fetched_routes: list[tuple[Route, FetchedRoute]]
    arrived_s = 0.0

    def fetch_route(self, route: Route, deadline_s: float) -> FetchedRoute:
        fetched = super().fetch_route(route, deadline_s)
        self.fetched_routes.append((route, fetched))
        self.arrived_s = time.monotonic()
        return fetched


class Member:
    """Worker `name` of the queue's run, with its part cache in `folder`."""

    def __init__(self, name: str, caller: Caller, store: ObjectStore, folder: Path, settings: Weights) -> None:
        self._name = name
        self.queue = WorkerQueue(caller)
        self.queue.heartbeat(name, Heartbeat("laboratory", Version(0, 0), "ready"), HEARTBEAT_S)
        threading.Thread(target=self._send_heartbeats, daemon=True).start()
        self.part_cache = PartCache(folder, CACHE_BYTES)
        self.exchange = RecordingExchange(PeerDirectory(caller), store, self.part_cache, name, settings, secret=SECRET)
        self.exchange.fetched_routes = []

    def fetch(self, route: Route) -> FetchedRoute:
        return self.exchange.fetch_route(route, DEADLINE_S)

    def parts(self, route: Route) -> Sequence[memoryview]:
        return [self.part_cache.open(part).memory() for part in route.parts]

    def at_half(self, route: Route, then: Callable[[], None]) -> None:
        """Calls `then` once half of the route's chunks are here."""
        half = sum(len(part.chunks) for part in route.parts) / 2
        while sum(file.next for part in route.parts if (file := self.part_cache.find(part.key))) < half:
            time.sleep(POLL_S)
        then()

    def _send_heartbeats(self) -> None:
        while True:
            time.sleep(HEARTBEAT_S)
            self.queue.heartbeat(self._name, Heartbeat("laboratory", Version(0, 0), "ready"), HEARTBEAT_S)


class WatchingNode:
    """Fetches and stages published versions by the product's own means: the cheapest path from what it has."""

    def __init__(self, member: Member, store: ObjectStore) -> None:
        self._member, self._store, self._stage = member, store, Stage()

    def serve(self, published: Published, public_key: str) -> None:
        fetcher = self._fetcher(self._pinned(public_key))
        self._member.exchange.fetched_routes.clear()
        fetched = fetcher.fetch(published)
        self._stage.hold()
        try:
            fetcher.apply(fetched)
        finally:
            self._stage.release()
        self._report(self._stage.have == (fetched.manifest.version, fetched.manifest.root))

    def follow(self, public_key: str) -> None:
        """Prefetches announced parts and stages published versions from now on, as a worker does."""
        pinned = self._pinned(public_key)
        prefetcher = Prefetcher(self._member.queue, pinned.verifier, self._stage, self._member.exchange, DEADLINE_S)
        WeightWatcher(self._member.queue, self._fetcher(pinned), None, prefetcher.update).start()
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        """Reports each staged version; a stage has a version only if all its tensors match the manifest."""
        said = None
        while True:
            have = self._stage.have
            if have is not None and have != said:
                self._report(staged=True)
                said = have
            time.sleep(POLL_S)

    def _report(self, staged: bool) -> None:
        fetched_routes = self._member.exchange.fetched_routes
        sizes = {route.name: route.size for route, _ in fetched_routes}
        store_bytes = sum(fetched.store_bytes for _, fetched in fetched_routes)
        report(
            "serving", arrived_s=self._member.exchange.arrived_s, routes=sizes, staged=staged, store_bytes=store_bytes
        )

    def _pinned(self, public_key: str) -> PinnedKey:
        return PinnedKey(SignatureVerifier(public_key), RunKeys(public_key, SECRET, bytes(32)), self._member.queue)

    def _fetcher(self, pinned: PinnedKey) -> VersionFetcher:
        return VersionFetcher(self._store, pinned, self._stage, self._member.exchange, DEADLINE_S)
