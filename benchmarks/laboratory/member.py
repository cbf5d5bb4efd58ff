"""A worker as far as weights are concerned: spool, courier and heartbeat, built as the product builds them."""

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.laboratory.origin import client
from echo_queue.config import Weights
from echo_queue.queue import Queue
from echo_queue.queue.types import Beat
from echo_queue.records import Version
from echo_queue.store import ObjectStore
from echo_queue.weights.manifest import Route
from workers.weights.courier import Brought, Courier
from workers.weights.spool import Spool

SECRET = b"laboratory"
SPOOL_BYTES = 8 << 30
BEAT_S = 1.0
DEADLINE_S = 300.0
LOOK_S = 0.005


class Member:
    def __init__(
        self,
        name: str,
        run: str,
        redis: Path,
        store: ObjectStore,
        folder: Path,
        *,
        address: str,
        region: str,
        chunk_deadline_s: float,
    ) -> None:
        self._name = name
        self._queue = Queue(client(redis), run)
        self._queue.beat(name, Beat("laboratory", Version(0, 0), "ready"), BEAT_S)
        threading.Thread(target=self._beat, daemon=True).start()
        settings = Weights(region=region, peer_host=address, chunk_deadline_s=chunk_deadline_s)
        self.spool = Spool(folder, SPOOL_BYTES)
        self._courier = Courier(Queue(client(redis), run), store, self.spool, name, settings, secret=SECRET)

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
