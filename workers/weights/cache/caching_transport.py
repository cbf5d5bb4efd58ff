"""The base of transports that write parts to the part cache: downloads of routes, one prefetch, early return.

- `fetch` returns parts that are whole. If it may return early and the whole path fits into the cache, it returns at
  once, and one thread fetches while the parts that are whole already are decoded.
- All known parts of a route have their room before the first byte, and are held until the last one is whole.
- One route at a time may be prefetched, while no other is fetched; a fetch of that route continues the prefetch.
- A closed transport fetches nothing more, and a read in progress does not delay the end of the process.
"""

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from echo_queue.config import Config
from echo_queue.errors import EchoQueueError
from echo_queue.weights.manifest import Part, Route
from workers.weights.cache.download import LINGER_S, RouteDownload
from workers.weights.cache.fetch_thread import FetchThread
from workers.weights.cache.part_cache import PartCache
from workers.weights.cache.sources import RouteSources, worker_leaving
from workers.weights.transport import STORE, FetchedPart

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class FetchedRoute:
    """The bytes that were fetched of one route, by source, prefetched ones included."""

    fetched: Mapping[str, int]

    @property
    def store_bytes(self) -> int:
        return self.fetched.get(STORE, 0)

    @property
    def peer_bytes(self) -> int:
        """The bytes from sources other than the store."""
        return sum(self.fetched.values()) - self.store_bytes


class CachingTransport(ABC):
    """The base class. A transport implements `_sources`; `close` also closes the given cache."""

    def __init__(self, part_cache: PartCache) -> None:
        self.fetched: Counter[str] = Counter()
        self._part_cache = part_cache
        self._retired = False
        self._closed = threading.Event()
        self._failed: set[str] = set()
        self._downloads: set[RouteDownload] = set()
        self._prefetched: RouteDownload | None = None
        self._fetching = 0
        self._lock = threading.Lock()
        self._fetch_thread = FetchThread(self.fetch_route, part_cache)

    @abstractmethod
    def _sources(self, route: str, deadline_s: float, restart: bool) -> RouteSources:
        """Returns the sources of a route.

        `restart`: no chunk of the route is here, and this is not the retry of a download that failed.
        """

    def fetch(self, routes: Sequence[Route], deadline_s: float, *, early: bool = False) -> Mapping[str, FetchedPart]:
        self.drop_prefetched(keep=routes)
        if early and routes and sum(route.size for route in routes) <= self._part_cache.most_bytes:
            return self._fetch_thread.start(routes, deadline_s)
        parts: dict[str, FetchedPart] = {}
        for route in routes:
            with self._part_cache.hold(route):
                self.fetch_route(route, deadline_s)
                # An open part stays readable, whatever the cache evicts afterwards.
                parts |= {part.key: self._part_cache.open(part) for part in route.parts}
        return parts

    def fetch_route(self, route: Route, deadline_s: float) -> FetchedRoute:
        """Returns when every part of the route is whole in the part cache, and verified. Raises as `fetch` does."""
        began = time.monotonic()
        with self._lock:
            self._fetching += 1
        try:
            with self._part_cache.hold(route), self._new_download(route.name) as download:
                download.add(route.parts)
                download.complete()
                before = self._finish_prefetch(route, deadline_s)
                if not download.whole:
                    self._run(download, deadline_s - (time.monotonic() - began))
                fetched = before + download.fetched
        finally:
            with self._lock:
                self._fetching -= 1
        return FetchedRoute(fetched)

    def prefetch(self, route: str, parts: Sequence[Part], deadline_s: float) -> RouteDownload | None:
        with self._lock:
            if self._fetching or self._prefetched is not None or self._retired or self._closed.is_set():
                return None
            download = self._new_download(route)
            try:
                download.grow(parts[0])
                download.add(parts)
                run = threading.Thread(
                    target=self._run_prefetch, args=(download, deadline_s), name="prefetch", daemon=True
                )
                run.start()
            except BaseException:
                download.close()
                self._part_cache.discard(download.keys)
                raise
            self._prefetched = download
            return download

    def drop_prefetched(self, keep: Sequence[Route] = ()) -> None:
        with self._lock:
            prefetched = self._prefetched
            wanted = {part.key for route in keep for part in route.parts}
            if prefetched is None:
                return
            if prefetched.keys <= wanted and any(route.name == prefetched.name for route in keep):
                return
            self._prefetched = None
        prefetched.close()
        self._part_cache.discard(prefetched.keys - wanted)

    def retire(self) -> None:
        self._retired = True

    def close(self) -> None:
        self._closed.set()
        give_up = time.monotonic() + LINGER_S
        with self._lock:
            downloads = tuple(self._downloads)
        for download in downloads:
            download.stop()
            download.join(give_up)
        self._part_cache.close()

    def _new_download(self, route: str) -> RouteDownload:
        return RouteDownload(route, self._part_cache, self.fetched, self._closed)

    def _run(self, download: RouteDownload, deadline_s: float) -> None:
        if self._closed.is_set():
            raise worker_leaving(download.name)
        # A retry is no restart: this worker keeps its place in the chain, since others may wait for its chunks.
        sources = self._sources(download.name, deadline_s, download.untouched and download.name not in self._failed)
        self._failed.add(download.name)
        with self._lock:
            self._downloads.add(download)
        whole = False
        try:
            download.run(sources)
            whole = True
        finally:
            with self._lock:
                self._downloads.discard(download)
            sources.end(whole)
        self._failed.discard(download.name)

    def _run_prefetch(self, download: RouteDownload, deadline_s: float) -> None:
        """Prefetch thread: runs the download until it is whole, dropped or has failed."""
        with download:
            try:
                self._run(download, deadline_s)
            except EchoQueueError as error:
                log.info("%s is no longer prefetched: %s", download.name, error)

    def _finish_prefetch(self, route: Route, deadline_s: float) -> "Counter[str]":
        """Adds all other parts to the prefetch of this route, if any, and waits for it; returns bytes by source."""
        with self._lock:
            prefetched = self._prefetched
        if prefetched is None or prefetched.name != route.name:
            return Counter()
        self.drop_prefetched(keep=(route,))
        with self._lock:
            self._prefetched = None
        prefetched.add(route.parts)
        prefetched.complete()
        if not prefetched.over.wait(deadline_s):
            prefetched.close()
        return prefetched.fetched


def open_part_cache(config: Config, worker: str) -> PartCache:
    settings = config.weights
    return PartCache((settings.cache_dir or config.run.dir / "part_cache") / worker, settings.cache_max_bytes)
