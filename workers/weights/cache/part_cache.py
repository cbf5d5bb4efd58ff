"""Keeps parts of routes on this worker's disk, for decoding and for serving to peers. Only verified chunks count.

- `write` compares a chunk with the part's digest before a byte of it is kept: a chunk that differs is never stored.
- Room is reserved before the first byte, so a full disk is one clear error; no file is zeroed only to be overwritten.
- A part that does not fit into `most_bytes`, or on the disk, evicts the routes used longest ago that are not held;
  code that refers to an evicted part can go on reading it, as its file ends with its last user.
- A part that is not being read or written costs no descriptor: there may be more parts than files may be open.
- A cache lives as long as its process: wiped at the start, removed at the end; those of dead workers are swept. It
  never removes foreign files: a folder counts as a cache by its lock alone, and a file as a part by its name in one.
"""

import errno
import fcntl
import mmap
import os
import re
import shutil
import threading
import time
import weakref
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from blake3 import blake3

from echo_queue import failpoints
from echo_queue.errors import Problem, ServiceError
from echo_queue.weights.manifest import Part, Route

LOCK = ".echo-queue-part-cache"
"""A file name that no other program uses: a folder with such a file is a part cache."""
PART = "{number:06}.part"
OURS = re.compile(r"[0-9]{6,}\.part")
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class PartFile:
    """The chunks of one part that have arrived. Many threads may wait for them; one at a time may fill the part."""

    def __init__(self, path: Path, part: Part) -> None:
        self.part = part
        self.filling = threading.Lock()
        """Held by the thread that fetches the part."""
        self._path = path
        self._landed = bytearray(len(part.chunks))
        self._next = 0
        self._missing_bytes = part.size
        self._expected = 0
        self._changed = threading.Condition()
        self._kept: int | None = None
        """The open file from which users read the part once it has been removed from the cache."""
        self._moving = threading.Lock()
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(file, part.size)
        finally:
            os.close(file)

    @property
    def whole(self) -> bool:
        return self._next == len(self._landed)

    @property
    def next(self) -> int:
        """The first chunk that is missing."""
        return self._next

    @property
    def missing_bytes(self) -> int:
        return self._missing_bytes

    @property
    def expected(self) -> bool:
        """True while a download is fetching the missing chunks."""
        return self._expected > 0

    def expect(self, wanted: bool) -> None:
        """Counts a download that begins (`wanted`) or stops fetching this part."""
        with self._changed:
            self._expected += 1 if wanted else -1
            self._changed.notify_all()

    def landed(self, index: int) -> int:
        """Returns the first chunk from `index` on that is missing."""
        end = self._landed.find(0, index)
        return len(self._landed) if end < 0 else end

    @property
    def there(self) -> bool:
        """True while the part's file exists where it was made."""
        return self._path.exists()

    @contextmanager
    def opened(self) -> Iterator[int]:
        """Opens the part's file for positioned reads and writes, until the end of the block. Raises `ServiceError`."""
        try:
            with self._moving:
                file = os.dup(self._kept) if self._kept is not None else os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            what = f"{self._path} cannot be opened: {error.strerror}"
            fix = "see that nothing else removes files there, and that enough files may be open (ulimit -n)"
            raise ServiceError(Problem("weights.cache_dir", what, fix)) from None
        try:
            yield file
        finally:
            os.close(file)

    def write(self, index: int, data: bytes | memoryview) -> bool:
        """Keeps `data` if it is chunk `index`, and returns whether it is. Raises `ServiceError` if there is no room."""
        if len(data) != self.part.length(index) or blake3(data).hexdigest() != self.part.chunks[index]:
            return False
        view, start = memoryview(data), self.part.start(index)
        with self.opened() as file:
            try:
                while view:
                    written = os.pwrite(file, view, start)
                    view, start = view[written:], start + written
            except OSError as error:
                raise _no_room(self._path.parent, len(view), error) from None
        with self._changed:
            self._missing_bytes -= 0 if self._landed[index] else len(data)
            self._landed[index] = 1
            self._next = self.landed(self._next)
            self._changed.notify_all()
        return True

    def wait(self, index: int, deadline_s: float) -> int:
        """Returns the first chunk from `index` on that is missing; waits while that is `index` itself and a download
        fetches it, for `deadline_s` at most."""
        with self._changed:
            self._changed.wait_for(lambda: self.landed(index) > index or not self._expected, deadline_s)
            return self.landed(index)

    def memory(self) -> memoryview:
        """Maps the whole part for reading; the memory stays valid while it is referred to.

        Raises `ServiceError` if a chunk is missing: only a whole part has been verified completely.
        """
        if not self.whole:
            missing = f"{self.part.key}: chunk {self._next} of {len(self._landed)} is missing"
            raise ServiceError(Problem("weights", missing, "fetch the route before it is used"))
        if not self.part.size:
            return memoryview(b"")
        with self.opened() as file:
            return memoryview(mmap.mmap(file, self.part.size, access=mmap.ACCESS_READ))

    def remove(self) -> None:
        """Removes the part's file; code that still refers to this part can go on reading it."""
        with self._moving, suppress(FileNotFoundError):
            with suppress(OSError):
                self._kept = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
                weakref.finalize(self, os.close, self._kept)
            self._path.unlink()


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
                _remove(self.folder)
            os.close(self._guard)

    # ------------------------------------------------------------------------------------------------------------------

    def _occupy(self) -> None:
        """Makes the folder, locks it and empties it; the lock ends with this process, however that ends."""
        if self.folder.name in ("", ".", ".."):
            raise ServiceError(Problem("--name", f"{self.folder.name!r} cannot name a folder", "choose another name"))
        try:
            guard = _lock(self.folder, make=True)
        except OSError as error:
            what = f"{self.folder} cannot be made: {error.strerror}"
            raise ServiceError(Problem("weights.cache_dir", what, "name a folder that this worker may write")) from None
        if guard is None:
            what = f"{self.folder} belongs to another process that is running"
            raise ServiceError(Problem("weights.cache_dir", what, "give each worker a name of its own"))
        self._guard = guard
        _wipe(self.folder)

    def _sweep(self) -> None:
        """Removes part caches beside this one whose process is gone."""
        for lock in self.folder.parent.glob(f"*/{LOCK}"):
            if lock.parent.name != self.folder.name:
                with suppress(OSError):
                    _remove_dead(lock.parent)

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
            return _no_room(self.folder, part.size, OSError(errno.ENOSPC, "No space left on device"))
        except OSError as error:
            return _no_room(self.folder, part.size, error)

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
        path = self.folder / PART.format(number=self._made)
        try:
            file = PartFile(path, part)
        except OSError as error:
            with suppress(OSError):
                path.unlink()
            raise _no_room(self.folder, part.size, error) from None
        self._parts[part.key] = file
        self._more.notify_all()
        return file


def _no_room(folder: Path, count: int, error: OSError) -> ServiceError:
    fix = "free space there, or name another folder, or lower weights.cache_max_bytes"
    if error.errno not in NO_ROOM:
        fix = "check the disk"
    return ServiceError(Problem("weights.cache_dir", f"{folder}: no room for {count} bytes ({error.strerror})", fix))


def route_of(key: str) -> str:
    """Returns the folder of a part's key: all parts of a route lie in one."""
    return key.rpartition("/")[0]


def _lock(folder: Path, make: bool) -> int | None:
    """Takes the lock of a part cache and returns it as an open file; None if a living process holds it."""
    while True:
        if make:
            folder.mkdir(parents=True, exist_ok=True)
        try:
            if make:
                _refuse_foreign(folder)
            guard = os.open(folder / LOCK, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if make else 0), 0o600)
        except FileNotFoundError:
            if make:
                continue  # a sweep has just removed the folder
            raise
        try:
            fcntl.flock(guard, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(guard).st_ino == (folder / LOCK).stat().st_ino:
                return guard
        except BlockingIOError:
            os.close(guard)
            return None
        except FileNotFoundError:
            pass
        os.close(guard)  # a sweep took the folder away between the two calls


def _refuse_foreign(folder: Path) -> None:
    names = [path.name for path in folder.iterdir()]
    if names and LOCK not in names:
        what = f"{folder} holds {min(names)}, and is no part cache: there is no {LOCK} in it"
        raise ServiceError(Problem("weights.cache_dir", what, "name another folder, or empty this one"))


def _remove_dead(folder: Path) -> None:
    guard = _lock(folder, make=False)
    if guard is not None:
        try:
            _remove(folder)
        finally:
            os.close(guard)


def _remove(folder: Path) -> None:
    """Removes a part cache. The caller holds its lock. A folder with a foreign file in it stays, and stays a cache."""
    _wipe(folder)
    if list(folder.iterdir()) == [folder / LOCK]:
        (folder / LOCK).unlink()
        folder.rmdir()


def _wipe(folder: Path) -> None:
    """Removes the parts in a folder, and nothing else."""
    for path in list(folder.iterdir()):
        if OURS.fullmatch(path.name):
            with suppress(IsADirectoryError, PermissionError):
                path.unlink()
