"""Keeps parts of routes on this worker's disk, for decoding and for serving to peers. Only verified chunks count.

- Room is reserved before the first byte, so a full disk is one clear error; no file is zeroed only to be overwritten.
- A part that does not fit into `most_bytes`, or on the disk, evicts the routes used longest ago that are not held.
- A cache lives as long as its process: wiped at the start, removed at the end; those of dead workers are swept.
"""

import errno
import os
import shutil
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from echo_queue import failpoints
from echo_queue.errors import Problem, ServiceError
from echo_queue.weights.manifest import Part, Route
from workers.weights.cache import cache_folder
from workers.weights.cache.part_file import PartFile, no_room


class PartCache:
    """The parts in `folder`, which belongs to this process alone, within `most_bytes` together."""

    def __init__(self, folder: Path, most_bytes: int) -> None:
        self.folder = folder
        self.most_bytes = most_bytes
        self._parts: dict[str, PartFile] = {}
        self._used: dict[str, float] = {}
        self._held: Counter[str] = Counter()
        self._made = 0
        self._growing: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._more = threading.Condition(self._lock)
        """Notified when a part is allocated, or a route grows no more."""
        self._closed = False
        failpoints.step("open part cache", self._occupy, folder)
        self._sweep()

    def open(self, part: Part) -> PartFile:
        """Returns the part, as far as it is here; makes room for a new one. Raises `ServiceError` if there is none."""
        with self._lock:
            self._used[route_of(part.key)] = time.monotonic()
            known = self._parts.get(part.key)
            if known is not None and (known.part != part or not known.there):
                self._drop(part.key)
                known = None
            if known is not None:
                if not known.whole:
                    self._make_room(part, 0)
                return known
            self._make_room(part, part.size)
            return failpoints.step("allocate part", lambda: self._allocate(part), part.key)

    def find(self, key: str, patience_s: float = 0.0) -> PartFile | None:
        """Returns the part of that key, None if the cache lacks it; waits up to `patience_s` while its route grows."""
        with self._more:
            self._more.wait_for(lambda: key in self._parts or not self._growing[route_of(key)], patience_s)
            found = self._parts.get(key)
            if found is not None:
                self._used[route_of(key)] = time.monotonic()
            return found

    def grows(self, key: str) -> bool:
        """Returns whether more parts of the route of `key` may come."""
        return self._growing[route_of(key)] > 0

    @contextmanager
    def growing(self, name: str) -> Iterator[None]:
        """Holds the route `name` (`route_of` its parts) and marks it as growing, until the end of the block."""
        with self._more:
            self._held[name] += 1
            self._growing[name] += 1
        try:
            yield
        finally:
            with self._more:
                self._held[name] -= 1
                self._growing[name] -= 1
                self._more.notify_all()

    def discard(self, keys: Iterable[str]) -> None:
        """Removes these parts, even if they are held; code that refers to one can go on reading it."""
        with self._lock:
            for key in keys:
                if key in self._parts:
                    self._drop(key)

    @contextmanager
    def hold(self, *routes: Route) -> Iterator[None]:
        """Keeps these routes from eviction until the end of the block."""
        names = {route_of(part.key) for route in routes for part in route.parts}
        with self._lock:
            self._held.update(names)
        try:
            yield
        finally:
            with self._lock:
                self._held.subtract(names)

    @property
    def bytes(self) -> int:
        return sum(file.part.size for file in tuple(self._parts.values()))

    def close(self) -> None:
        """Removes the part cache; parts that are still open stay readable."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            for key in tuple(self._parts):
                self._drop(key)
            with suppress(OSError):
                cache_folder.remove(self.folder)
            os.close(self._guard)

    # ------------------------------------------------------------------------------------------------------------------

    def _occupy(self) -> None:
        """Makes the folder, locks it and empties it; the lock ends with this process, however that ends."""
        if self.folder.name in ("", ".", ".."):
            raise ServiceError(Problem("--name", f"{self.folder.name!r} cannot name a folder", "choose another name"))
        try:
            guard = cache_folder.lock(self.folder, make=True)
        except OSError as error:
            what = f"{self.folder} cannot be made: {error.strerror}"
            raise ServiceError(Problem("weights.cache_dir", what, "name a folder that this worker may write")) from None
        if guard is None:
            what = f"{self.folder} belongs to another process that is running"
            raise ServiceError(Problem("weights.cache_dir", what, "give each worker a name of its own"))
        self._guard = guard
        cache_folder.wipe(self.folder)

    def _sweep(self) -> None:
        """Removes part caches beside this one whose process is gone."""
        for lock in self.folder.parent.glob(f"*/{cache_folder.LOCK}"):
            if lock.parent.name != self.folder.name:
                with suppress(OSError):
                    cache_folder.remove_dead(lock.parent)

    def _make_room(self, part: Part, more: int) -> None:
        """Makes room for `more` bytes of this part, and for the missing bytes of all allocated parts.

        Evicts the routes used longest ago. Raises `ServiceError` if that is not enough.
        """
        if self._closed:
            raise ServiceError(Problem("weights.cache_dir", f"{self.folder} is closed", "this worker is leaving"))
        oldest: Iterator[str] | None = None
        while (shortage := self._shortage(part, more)) is not None:
            if oldest is None:
                oldest = iter(sorted(self._used, key=lambda route: self._used[route]))
            route = next(oldest, None)
            if route is None:
                raise shortage
            if route != route_of(part.key) and not self._held[route]:
                self._evict(route)

    def _shortage(self, part: Part, more: int) -> ServiceError | None:
        used = self.bytes
        if used + more > self.most_bytes:
            what = f"{part.size} bytes do not fit: the part cache uses {used} of {self.most_bytes}"
            return ServiceError(Problem("weights.cache_max_bytes", what, "raise it: one route must fit whole"))
        promised = more + sum(file.missing_bytes for file in self._parts.values())
        try:
            if promised <= shutil.disk_usage(self.folder).free:
                return None
            return no_room(self.folder, part.size, OSError(errno.ENOSPC, "No space left on device"))
        except OSError as error:
            return no_room(self.folder, part.size, error)

    def _evict(self, route: str) -> None:
        keys = [key for key, file in self._parts.items() if route_of(key) == route and not file.expected]
        for key in keys:
            self._drop(key)
        if not any(route_of(key) == route for key in self._parts):
            del self._used[route]

    def _drop(self, key: str) -> None:
        failpoints.step("drop part", self._parts.pop(key).remove, key)

    def _allocate(self, part: Part) -> PartFile:
        self._made += 1
        path = self.folder / cache_folder.PART.format(number=self._made)
        try:
            file = PartFile(path, part)
        except OSError as error:
            with suppress(OSError):
                path.unlink()
            raise no_room(self.folder, part.size, error) from None
        self._parts[part.key] = file
        self._more.notify_all()
        return file


def route_of(key: str) -> str:
    """Returns the folder of a part's key: all parts of a route lie in one."""
    return key.rpartition("/")[0]
