"""A worker as far as weights are concerned: spool, courier and heartbeat, built as the product builds them."""

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.laboratory.saying import say
from echo_queue.config import Weights
from echo_queue.queue import Queue
from echo_queue.queue.types import Beat
from echo_queue.records import Published, Version
from echo_queue.store import ObjectStore
from echo_queue.weights.manifest import Route
from echo_queue.weights.reading import read_manifest, ways
from echo_queue.weights.signing import Verifier
from workers.weights.courier import Brought, Courier
from workers.weights.spool import Spool
from workers.weights.staging import Stage

SECRET = b"laboratory"
SPOOL_BYTES = 8 << 30
BEAT_S = 1.0
DEADLINE_S = 300.0
LOOK_S = 0.005


class Member:
    """Worker `name` of the queue's run, with its spool in `folder`."""

    def __init__(self, name: str, queue: Queue, store: ObjectStore, folder: Path, settings: Weights) -> None:
        self._name = name
        self._queue = queue
        self._queue.beat(name, Beat("laboratory", Version(0, 0), "ready"), BEAT_S)
        threading.Thread(target=self._beat, daemon=True).start()
        self.spool = Spool(folder, SPOOL_BYTES)
        self._courier = Courier(queue, store, self.spool, name, settings, secret=SECRET)

    def bring(self, route: Route) -> Brought:
        return self._courier.bring(route, DEADLINE_S)

    def parts(self, route: Route) -> Sequence[memoryview]:
        return [self.spool.open(part).memory() for part in route.parts]

    def at_half(self, route: Route, then: Callable[[], None]) -> None:
        """Calls `then` once half of the route's chunks are here."""
        half = sum(len(part.chunks) for part in route.parts) / 2
        while sum(file.next for part in route.parts if (file := self.spool.find(part.key))) < half:
            time.sleep(LOOK_S)
        then()

    def _beat(self) -> None:
        while True:
            time.sleep(BEAT_S)
            self._queue.beat(self._name, Beat("laboratory", Version(0, 0), "ready"), BEAT_S)


class Follower:
    """Fetches and stages published versions as a worker does: by the cheapest way from what it has, all verified."""

    def __init__(self, member: Member, store: ObjectStore) -> None:
        self._member, self._store, self._stage = member, store, Stage()

    def serve(self, published: Published, public_key: str) -> None:
        verifier = Verifier(public_key)
        manifest = read_manifest(self._store, published, verifier)
        routes = ways(self._store, self._stage.have, manifest, verifier)
        brought = [self._member.bring(route) for route in routes]
        arrived_s = time.monotonic()
        files = {part.key: self._member.spool.open(part) for route in routes for part in route.parts}
        self._stage.hold()
        try:
            self._stage.apply(routes, manifest, files, None)
        finally:
            self._stage.release()
        sizes = {route.name: route.size for route in routes}
        staged = self._stage.have == (manifest.version, manifest.root)
        store_bytes = sum(one.store_bytes for one in brought)
        say("serving", arrived_s=arrived_s, routes=sizes, staged=staged, store_bytes=store_bytes)
