"""A worker as far as weights are concerned: part cache, courier and heartbeat, built as the product builds them."""

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.laboratory.saying import say
from echo_queue.config import Weights
from echo_queue.queue import Caller, PeerDirectory, WorkerQueue
from echo_queue.queue.types import Heartbeat, RunKeys
from echo_queue.records import Published, Version
from echo_queue.storage.object_store import ObjectStore
from echo_queue.weights.manifest import Route
from echo_queue.weights.signatures import SignatureVerifier
from workers.weights import watcher
from workers.weights.fetch import VersionFetcher
from workers.weights.key_pinning import PinnedKey
from workers.weights.peers.exchange import Brought, PeerExchange
from workers.weights.peers.part_cache import PartCache
from workers.weights.prefetch import Prefetcher
from workers.weights.staging import Stage

SECRET = b"laboratory"
SPOOL_BYTES = 8 << 30
BEAT_S = 1.0
DEADLINE_S = 300.0
LOOK_S = 0.005


class Member:
    """Worker `name` of the queue's run, with its part cache in `folder`."""

    def __init__(self, name: str, caller: Caller, store: ObjectStore, folder: Path, settings: Weights) -> None:
        self._name = name
        self.queue = WorkerQueue(caller)
        self.queue.heartbeat(name, Heartbeat("laboratory", Version(0, 0), "ready"), BEAT_S)
        threading.Thread(target=self._beat, daemon=True).start()
        self.part_cache = PartCache(folder, SPOOL_BYTES)
        self.exchange = PeerExchange(PeerDirectory(caller), store, self.part_cache, name, settings, secret=SECRET)

    def bring(self, route: Route) -> Brought:
        return self.exchange.bring(route, DEADLINE_S)

    def parts(self, route: Route) -> Sequence[memoryview]:
        return [self.part_cache.open(part).memory() for part in route.parts]

    def at_half(self, route: Route, then: Callable[[], None]) -> None:
        """Calls `then` once half of the route's chunks are here."""
        half = sum(len(part.chunks) for part in route.parts) / 2
        while sum(file.next for part in route.parts if (file := self.part_cache.find(part.key))) < half:
            time.sleep(LOOK_S)
        then()

    def _beat(self) -> None:
        while True:
            time.sleep(BEAT_S)
            self.queue.heartbeat(self._name, Heartbeat("laboratory", Version(0, 0), "ready"), BEAT_S)


class WatchingNode:
    """Fetches and stages published versions by the product's own intake: the cheapest way from what it has."""

    def __init__(self, member: Member, store: ObjectStore) -> None:
        self._member, self._store, self._stage = member, store, Stage()
        self._routes: list[Route] = []
        self._store_bytes = 0
        self._arrived_s = 0.0

    def serve(self, published: Published, public_key: str) -> None:
        intake = self._intake(self._pinned(public_key))
        self._routes.clear()
        arrived = intake.bring(published)
        self._stage.hold()
        try:
            intake.apply(arrived)
        finally:
            self._stage.release()
        self._say(self._stage.have == (arrived.manifest.version, arrived.manifest.root))

    def follow(self, public_key: str) -> None:
        """From now on by itself, as a worker does: what is announced is prefetched, what is published is staged."""
        pinned = self._pinned(public_key)
        ahead = Prefetcher(self._member.queue, pinned.verifier, self._stage, self._member.exchange, DEADLINE_S)
        watcher.WeightWatcher(self._member.queue, self._intake(pinned), None, ahead.follow).start()
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        """A stage has a version only if all of its tensors are those of the manifest."""
        said = None
        while True:
            have = self._stage.have
            if have is not None and have != said:
                self._say(staged=True)
                said = have
            time.sleep(LOOK_S)

    def _say(self, staged: bool) -> None:
        sizes = {route.name: route.size for route in self._routes}
        say("serving", arrived_s=self._arrived_s, routes=sizes, staged=staged, store_bytes=self._store_bytes)

    def _pinned(self, public_key: str) -> PinnedKey:
        return PinnedKey(SignatureVerifier(public_key), RunKeys(public_key, SECRET, bytes(32)), self._member.queue)

    def _intake(self, pinned: PinnedKey) -> VersionFetcher:
        way = self._member.exchange.make_way
        return VersionFetcher(
            self._store, pinned, self._stage, bring=self._bring, part_cache=self._member.part_cache, make_way=way
        )

    def _bring(self, route: Route) -> None:
        self._store_bytes += self._member.bring(route).store_bytes
        self._routes.append(route)
        self._arrived_s = time.monotonic()
