"""Fetches a path in a thread, so that parts are decoded while those after them are fetched.

- One thread fetches, however many paths are requested: a request for the same path joins it; another path begins once
  the route that is being fetched is whole or has failed, and only the last requested path waits.
- All parts of a path have their room before the first byte, and are held until the last one is whole.
"""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass

from echo_queue.errors import Problem, ServiceError
from echo_queue.weights.manifest import Route
from workers.weights.cache.part_cache import PartCache
from workers.weights.cache.part_file import PartFile

FetchRoute = Callable[[Route, float], object]
"""Fetches a route within the given seconds; afterwards all its parts are whole in the part cache, and verified."""
WAIT_S = 0.2


class PendingPart:
    """A part that is being fetched, or will be fetched."""

    def __init__(self, file: PartFile, fetching: "Future[None]") -> None:
        self._file, self._fetching = file, fetching

    def memory(self) -> memoryview:
        """Waits until the part is whole. Raises the error of its fetch, which has a deadline."""
        while not self._file.whole and not self._fetching.done():
            self._file.wait(self._file.next, WAIT_S)
        if not self._file.whole:
            self._fetching.result(timeout=0)
        return self._file.memory()


@dataclass(frozen=True, eq=False)
class _Path:
    routes: tuple[Route, ...]
    deadline_s: float
    """The longest that one route may take."""
    files: dict[str, PartFile]
    held: ExitStack
    fetching: "Future[None]"


class FetchThread:
    """Fetches one path at a time in a thread that ends when no path is left."""

    def __init__(self, fetch: FetchRoute, part_cache: PartCache) -> None:
        self._fetch_route = fetch
        self._part_cache = part_cache
        self._lock = threading.Lock()
        self._now: _Path | None = None
        """While there is one, a thread fetches it."""
        self._next: _Path | None = None

    def start(self, routes: Sequence[Route], deadline_s: float) -> dict[str, PendingPart]:
        """Begins to fetch these routes; returns their parts by key. Raises `ServiceError` if there is no room."""
        with self._lock:
            path = self._known(tuple(routes)) or self._want(tuple(routes), deadline_s)
            return {key: PendingPart(file, path.fetching) for key, file in path.files.items()}

    def _known(self, routes: tuple[Route, ...]) -> _Path | None:
        last = self._next or self._now
        return last if last is not None and last.routes == routes and not last.fetching.done() else None

    def _want(self, routes: tuple[Route, ...], deadline_s: float) -> _Path:
        with ExitStack() as holding:
            holding.enter_context(self._part_cache.hold(*routes))
            files = {part.key: self._part_cache.open(part) for route in routes for part in route.parts}
            path = _Path(routes, deadline_s, files, holding.pop_all(), Future())
        if self._now is None:
            try:
                threading.Thread(target=self._run, args=(path,), name="fetch", daemon=True).start()
            except RuntimeError as error:  # the process may start no more threads
                self._end(path, error)
                raise
            self._now = path
        else:
            former, self._next = self._next, path
            if former is not None:
                self._end(former, _superseded(former))
        return path

    def _run(self, path: _Path | None) -> None:
        """Fetch thread: fetches this path, then the one that was requested meanwhile."""
        while path is not None:
            failure = self._fetch(path)
            with self._lock:
                self._end(path, failure)
                path = self._now = self._next
                self._next = None

    def _fetch(self, path: _Path) -> BaseException | None:
        try:
            for route in path.routes:
                if self._next is not None:
                    return _superseded(path)
                self._fetch_route(route, path.deadline_s)
        except BaseException as error:
            return error
        return None

    def _end(self, path: _Path, error: BaseException | None) -> None:
        path.held.close()
        if error is None:
            path.fetching.set_result(None)
        else:
            path.fetching.set_exception(error)


def _superseded(path: _Path) -> ServiceError:
    what = f"the path to {path.routes[-1].version} is no longer fetched"
    return ServiceError(Problem("weights", what, "another path was requested meanwhile"))
