"""Downloads the parts of one route into the part cache: a list that may still grow, and lanes that fetch its parts.

- A part has its room in the cache, and counts as expected, before the first of its bytes is fetched.
- Parts come one after another, each in one stream; the next is requested a moment before the one before it ends, so
  that no connection is idle in between.
- A route that is still growing stays in the part cache meanwhile, and a reader of one of its parts may wait for it.
"""

import threading
import time
from collections import Counter, deque
from collections.abc import Iterable
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from contextlib import ExitStack, closing
from typing import Any, Self

from echo_queue.weights.manifest import Part
from workers.weights.cache.part_cache import PartCache, route_of
from workers.weights.cache.part_file import PartFile
from workers.weights.cache.sources import RouteSources, SourceFailed

LANES = 2
OVERLAP_CHUNKS = 16
"""The next part is requested this many chunks before the end of the one before it."""
WAIT_S = 0.5
LINGER_S = 2.0
"""Closing waits this long for threads that are still fetching; one that receives nothing ends by its own deadline."""

ListedPart = tuple[PartFile, PartFile | None]
"""A part to be fetched, and the one before it."""


class RouteDownload:
    """Downloads the route `name`.

    `total`: the worker's byte counter by source. `closed`: set when the worker shuts down.
    """

    def __init__(self, name: str, part_cache: PartCache, total: "Counter[str]", closed: threading.Event) -> None:
        self.name = name
        self.fetched: Counter[str] = Counter()
        self.over = threading.Event()
        """Set once the download is closed."""
        self._part_cache, self._total, self._closed = part_cache, total, closed
        self._files: dict[str, PartFile] = {}
        self._listed: deque[ListedPart] = deque()
        self._last: PartFile | None = None
        self._complete = False
        self._stop = threading.Event()
        self._active = 0
        self._lanes: set[threading.Thread] = set()
        self._sources: RouteSources | None = None
        self._changed = threading.Condition()
        self._expected = ExitStack()
        self._growing = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def keys(self) -> frozenset[str]:
        """The keys of the route's parts."""
        return frozenset(self._files)

    @property
    def untouched(self) -> bool:
        """True if no chunk of the route is in the part cache."""
        return all(not file.next for file in self._files.values())

    @property
    def whole(self) -> bool:
        return all(file.whole for file in self._files.values())

    def grow(self, part: Part) -> None:
        """Marks the route of `part` as growing in the part cache until `complete` is called."""
        self._growing.enter_context(self._part_cache.growing(route_of(part.key)))

    def add(self, parts: Iterable[Part]) -> None:
        """Adds the next parts; known ones are ignored. Raises `ServiceError` if there is no room for one."""
        with self._changed:
            for part in parts:
                if part.key not in self._files and not self._stop.is_set():
                    self._add(part)
            if self._sources is not None:
                self._sources.renew()
            self._changed.notify_all()

    def complete(self) -> None:
        """Ends the list: no more parts will come."""
        with self._changed:
            self._complete = True
            self._changed.notify_all()
        self._growing.close()

    def run(self, sources: RouteSources) -> None:
        """Returns once the route is complete and all parts are whole, or it was stopped. Raises the error that prevents
        that."""
        self._sources = sources
        ends = [self._start_lane(sources) for _ in range(LANES)]
        try:
            waiting = set(ends)
            while waiting:
                done, waiting = wait(waiting, WAIT_S, FIRST_EXCEPTION)
                for end in done:
                    end.result(timeout=0)
                if waiting:
                    sources.check()
        except BaseException:
            self.stop()
            if not self._closed.is_set():  # else `join` waits for them
                wait(ends, LINGER_S)
            raise

    def stop(self) -> None:
        """Ends the fetching; a chunk that is being read is not interrupted."""
        self._stop.set()
        with self._changed:
            self._changed.notify_all()

    def join(self, give_up: float) -> None:
        """Waits for its lanes, until `give_up` (monotonic) at most."""
        with self._changed:
            lanes = tuple(self._lanes)
        for lane in lanes:
            lane.join(timeout=max(0.0, give_up - time.monotonic()))

    def close(self) -> None:
        """Stops, and releases the parts: the part cache may evict them."""
        self.stop()
        self._growing.close()
        with self._changed:
            self._expected.close()
        self.over.set()

    # Lanes ------------------------------------------------------------------------------------------------------------

    def _add(self, part: Part) -> None:
        file = self._files[part.key] = self._part_cache.open(part)
        if not file.whole:
            file.expect(True)
            self._expected.callback(file.expect, False)
            self._listed.append((file, self._last))
            self._last = file

    def _start_lane(self, sources: RouteSources) -> "Future[None]":
        """Starts a daemon thread; the interpreter's own pools would be waited for when it exits."""
        end: Future[None] = Future()
        lane = threading.Thread(target=self._run_lane, args=(sources, end), name="download", daemon=True)
        with self._changed:  # `join` sees no lane that was not started
            self._lanes.add(lane)
            lane.start()
        return end

    def _run_lane(self, sources: RouteSources, end: "Future[None]") -> None:
        """Lane thread: fetches parts until none is left or the download is stopped."""
        try:
            while (listed := self._next(sources)) is not None:
                try:
                    self._fill(*listed, sources)
                finally:
                    with self._changed:
                        self._active -= 1
            end.set_result(None)
        except BaseException as error:
            self.stop()
            end.set_exception(error)
        finally:
            self._lanes.discard(threading.current_thread())

    def _next(self, sources: RouteSources) -> ListedPart | None:
        """Lane thread: takes the next part, waiting while more may come; None: no part is left."""
        while not self._stop.is_set():
            with self._changed:
                if self._listed:
                    if not self._active:
                        sources.rested()
                    self._active += 1
                    return self._listed.popleft()
                if self._complete:
                    return None
                self._changed.wait(WAIT_S)
            sources.check()
        return None

    def _fill(self, file: PartFile, before: PartFile | None, sources: RouteSources) -> None:
        """Lane thread: fetches one part, once the part `before` it is nearly whole and no other lane fills it."""
        while before is not None and before.next < len(before.part.chunks) - OVERLAP_CHUNKS:
            before.wait(before.next, WAIT_S)
            sources.check()
            if self._stop.is_set():
                return
        while not file.filling.acquire(timeout=WAIT_S):
            sources.check()
            if self._stop.is_set():
                return
        try:
            while not file.whole and not self._stop.is_set():
                sources.check()
                self._read(file, sources)
        finally:
            file.filling.release()

    def _read(self, file: PartFile, sources: RouteSources) -> None:
        """Lane thread: reads from one source, until it ends or another source is to be read."""
        source = sources.current(file)
        chunks: Any = source.chunks(file)
        with closing(chunks):
            try:
                for length in chunks:
                    self.fetched[source.kind] += length
                    self._total[source.kind] += length
                    if not sources.took(source, file, length) or self._stop.is_set():
                        return
            except SourceFailed as why:
                self._closed.wait(sources.failed(source, file, why))
