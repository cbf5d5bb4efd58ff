"""Parts that are decoded while those after them are fetched.

- One thread fetches, however often and for however many ways it is asked: the same way is joined, another one is begun
  once the route that is being fetched has come or failed, and only the last that was asked for waits.
- All parts of a way have their place before the first byte, and are held until the last one is here.
"""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass

from echo_queue.errors import Problem, ServiceError
from echo_queue.weights.manifest import Route
from workers.weights.peers.part_cache import PartCache, PartFile

Bring = Callable[[Route], object]
"""Afterwards every part of the route is whole in the part cache, and verified."""
WAIT_S = 0.2


class PendingPart:
    """A part that is on its way."""

    def __init__(self, file: PartFile, fetching: "Future[None]") -> None:
        self._file, self._fetching = file, fetching

    def memory(self) -> memoryview:
        """Once it is whole. Raises what its fetching raised; that has a deadline."""
        while not self._file.whole and not self._fetching.done():
            self._file.wait(self._file.next, WAIT_S)
        if not self._file.whole:
            self._fetching.result(timeout=0)
        return self._file.memory()


@dataclass(frozen=True, eq=False)
class _Way:
    routes: tuple[Route, ...]
    files: dict[str, PartFile]
    held: ExitStack
    fetching: "Future[None]"


class Fetcher:
    def __init__(self, bring: Bring, part_cache: PartCache) -> None:
        self._bring = bring
        self._part_cache = part_cache
        self._lock = threading.Lock()
        self._now: _Way | None = None
        """While there is one, a thread fetches it."""
        self._next: _Way | None = None

    def start(self, routes: Sequence[Route]) -> dict[str, PendingPart]:
        """The parts of these routes, by their key. Raises `ServiceError` if there is no room for all of them."""
        with self._lock:
            way = self._known(tuple(routes)) or self._want(tuple(routes))
            return {key: PendingPart(file, way.fetching) for key, file in way.files.items()}

    def _known(self, routes: tuple[Route, ...]) -> _Way | None:
        last = self._next or self._now
        return last if last is not None and last.routes == routes and not last.fetching.done() else None

    def _want(self, routes: tuple[Route, ...]) -> _Way:
        with ExitStack() as holding:
            holding.enter_context(self._part_cache.hold(*routes))
            files = {part.key: self._part_cache.open(part) for route in routes for part in route.parts}
            way = _Way(routes, files, holding.pop_all(), Future())
        if self._now is None:
            try:
                threading.Thread(target=self._run, args=(way,), name="intake", daemon=True).start()
            except RuntimeError as error:  # there can be no more threads
                self._end(way, error)
                raise
            self._now = way
        else:
            former, self._next = self._next, way
            if former is not None:
                self._end(former, _outrun(former))
        return way

    def _run(self, way: _Way | None) -> None:
        while way is not None:
            trouble = self._fetch(way)
            with self._lock:
                self._end(way, trouble)
                way = self._now = self._next
                self._next = None

    def _fetch(self, way: _Way) -> BaseException | None:
        try:
            for route in way.routes:
                if self._next is not None:
                    return _outrun(way)
                self._bring(route)
        except BaseException as error:
            return error
        return None

    def _end(self, way: _Way, trouble: BaseException | None) -> None:
        way.held.close()
        if trouble is None:
            way.fetching.set_result(None)
        else:
            way.fetching.set_exception(trouble)


def _outrun(way: _Way) -> ServiceError:
    what = f"the way to {way.routes[-1].version} is not fetched any further"
    return ServiceError(Problem("weights", what, "another one was asked for meanwhile"))
