"""Parts of routes on this worker's disk: what peers are served from, and what is decoded. Only verified chunks count.

- `write` compares a chunk with the part's digest before a byte of it is kept: what does not match never was here.
- Room is looked for before the first byte, so a full disk is one clear error; nothing is zeroed only to be overwritten.
- What does not fit into `most_bytes` makes the routes leave that were used longest ago, unless someone holds them;
  who has such a part open keeps it, as its file ends with its last user.
- A spool lives as long as its process: wiped at the start, removed at the end; those of dead workers are swept. What
  it did not make itself it never removes: a folder counts as a spool by its lock alone, and a part by its name in one.
"""

import errno
import fcntl
import mmap
import os
import re
import threading
import time
import weakref
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from blake3 import blake3

from echo_queue import doors
from echo_queue.errors import Problem, ServiceError
from echo_queue.weights.manifest import Part, Route

LOCK = ".echo-queue-spool"
"""A name that nothing else gives a file: who has it in its folder has a spool."""
PART = "{number:06}.part"
OURS = re.compile(r"[0-9]{6,}\.part")
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class PartFile:
    """One part, as far as it is here. Chunks may be waited for by many threads; one at a time may fill it."""

    def __init__(self, path: Path, part: Part) -> None:
        self.part = part
        self.filling = threading.Lock()
        """Held by whoever fetches it."""
        self._path = path
        self._landed = bytearray(len(part.chunks))
        self._next = 0
        self._missing_bytes = part.size
        self._expected = 0
        self._changed = threading.Condition()
        self.file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        self._end = weakref.finalize(self, os.close, self.file)
        os.ftruncate(self.file, part.size)

    @property
    def whole(self) -> bool:
        return self._next == len(self._landed)

    @property
    def next(self) -> int:
        """The first chunk that is not here."""
        return self._next

    @property
    def missing_bytes(self) -> int:
        return self._missing_bytes

    @property
    def expected(self) -> bool:
        """Whether someone is fetching what is still missing."""
        return self._expected > 0

    def expect(self, coming: bool) -> None:
        with self._changed:
            self._expected += 1 if coming else -1
            self._changed.notify_all()

    def landed(self, index: int) -> int:
        """The first chunk from `index` on that is not here."""
        end = self._landed.find(0, index)
        return len(self._landed) if end < 0 else end

    def write(self, index: int, data: bytes | memoryview) -> bool:
        """Whether `data` is chunk `index`; then it is kept, and everyone may have it. `ServiceError`: no room."""
        if len(data) != self.part.length(index) or blake3(data).hexdigest() != self.part.chunks[index]:
            return False
        view, start = memoryview(data), self.part.start(index)
        try:
            while view:
                written = os.pwrite(self.file, view, start)
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
        """The first chunk from `index` on that is not here; waits while that is `index` itself and it is expected."""
        with self._changed:
            self._changed.wait_for(lambda: self.landed(index) > index or not self._expected, deadline_s)
            return self.landed(index)

    def memory(self) -> memoryview:
        """All of it, to read; stays valid while it is referred to. Only a whole part has been verified whole."""
        if not self.whole:
            missing = f"{self.part.key}: chunk {self._next} of {len(self._landed)} is missing"
            raise ServiceError(Problem("weights", missing, "fetch the route before it is used"))
        if not self.part.size:
            return memoryview(b"")
        return memoryview(mmap.mmap(self.file, self.part.size, access=mmap.ACCESS_READ))

    def remove(self) -> None:
        with suppress(FileNotFoundError):
            self._path.unlink()


class Spool:
    """The parts in `folder`, which belongs to this process alone, within `most_bytes` together."""

    def __init__(self, folder: Path, most_bytes: int) -> None:
        self.folder = folder
        self.most_bytes = most_bytes
        self._parts: dict[str, PartFile] = {}
        self._used: dict[str, float] = {}
        self._held: Counter[str] = Counter()
        self._made = 0
        self._lock = threading.Lock()
        self._closed = False
        doors.take("open spool", self._occupy, folder)
        self._sweep()

    def open(self, part: Part) -> PartFile:
        """The part, as far as it is here; room for it is made if it is new. Raises `ServiceError` if there is none."""
        with self._lock:
            self._used[route_of(part.key)] = time.monotonic()
            known = self._parts.get(part.key)
            if known is not None and known.part == part:
                return known
            if known is not None:
                self._drop(part.key)
            self._make_room(part)
            return doors.take("allocate part", lambda: self._allocate(part), part.key)

    def find(self, key: str) -> PartFile | None:
        """The part of that name, if it is here at all."""
        with self._lock:
            found = self._parts.get(key)
            if found is not None:
                self._used[route_of(key)] = time.monotonic()
            return found

    @contextmanager
    def hold(self, *routes: Route) -> Iterator[None]:
        """Keeps these routes meanwhile, whatever else needs room."""
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
        """Removes the spool; what is still open stays readable for whoever has it open."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._parts.clear()
            with suppress(OSError):
                _remove(self.folder)
            os.close(self._guard)

    # ------------------------------------------------------------------------------------------------------------------

    def _occupy(self) -> None:
        """Makes the folder anew and locks it; the lock ends with this process, however that ends."""
        if self.folder.name in ("", ".", ".."):
            raise ServiceError(Problem("--name", f"{self.folder.name!r} cannot name a folder", "choose another name"))
        try:
            guard = _lock(self.folder, make=True)
        except OSError as error:
            what = f"{self.folder} cannot be made: {error.strerror}"
            raise ServiceError(Problem("weights.spool_dir", what, "name a folder that this worker may write")) from None
        if guard is None:
            what = f"{self.folder} belongs to another process that lives"
            raise ServiceError(Problem("weights.spool_dir", what, "give each worker a name of its own"))
        self._guard = guard
        _wipe(self.folder)

    def _sweep(self) -> None:
        """Removes spools beside this one whose process is gone."""
        for lock in self.folder.parent.glob(f"*/{LOCK}"):
            if lock.parent.name != self.folder.name:
                with suppress(OSError):
                    _remove_dead(lock.parent)

    def _make_room(self, part: Part) -> None:
        if self._closed:
            raise ServiceError(Problem("weights.spool_dir", f"{self.folder} is closed", "this worker is leaving"))
        used = self.bytes
        for route in sorted(self._used, key=lambda route: self._used[route]):
            if used + part.size <= self.most_bytes:
                return
            if route != route_of(part.key) and not self._held[route]:
                used -= self._evict(route)
        if used + part.size > self.most_bytes:
            what = f"{part.size} bytes do not fit beside {used} that are in use; it may have {self.most_bytes}"
            raise ServiceError(Problem("weights.spool_max_bytes", what, "raise it: one route must fit whole"))

    def _evict(self, route: str) -> int:
        keys = [key for key, file in self._parts.items() if route_of(key) == route and not file.expected]
        freed = sum(self._drop(key) for key in keys)
        if not any(route_of(key) == route for key in self._parts):
            del self._used[route]
        return freed

    def _drop(self, key: str) -> int:
        file = self._parts.pop(key)
        doors.take("drop part", file.remove, key)
        return file.part.size

    def _allocate(self, part: Part) -> PartFile:
        self._made += 1
        path = self.folder / PART.format(number=self._made)
        try:
            promised = sum(file.missing_bytes for file in self._parts.values())
            disk = os.statvfs(self.folder)
            if promised + part.size > disk.f_bavail * disk.f_frsize:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            file = PartFile(path, part)
        except OSError as error:
            with suppress(OSError):
                path.unlink()
            raise _no_room(self.folder, part.size, error) from None
        self._parts[part.key] = file
        return file


def _no_room(folder: Path, count: int, error: OSError) -> ServiceError:
    mend = "free space there, or name another folder, or lower weights.spool_max_bytes"
    if error.errno not in NO_ROOM:
        mend = "look at the disk"
    return ServiceError(Problem("weights.spool_dir", f"{folder}: no room for {count} bytes ({error.strerror})", mend))


def route_of(key: str) -> str:
    """The folder of a part's key: all parts of a route lie in one."""
    return key.rpartition("/")[0]


def _lock(folder: Path, make: bool) -> int | None:
    """The lock of a spool, as an open file; None if a living process has it."""
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
    names = os.listdir(folder)
    if names and LOCK not in names:
        what = f"{folder} holds {min(names)}, and is no spool: there is no {LOCK} in it"
        raise ServiceError(Problem("weights.spool_dir", what, "name another folder, or empty this one"))


def _remove_dead(folder: Path) -> None:
    guard = _lock(folder, make=False)
    if guard is not None:
        try:
            _remove(folder)
        finally:
            os.close(guard)


def _remove(folder: Path) -> None:
    """For who has its lock. With something foreign in it the folder stays, and stays a spool."""
    _wipe(folder)
    if os.listdir(folder) == [LOCK]:
        (folder / LOCK).unlink()
        folder.rmdir()


def _wipe(folder: Path) -> None:
    """Removes the parts."""
    for name in filter(OURS.fullmatch, os.listdir(folder)):
        with suppress(IsADirectoryError, PermissionError):
            (folder / name).unlink()
