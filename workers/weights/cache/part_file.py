"""One part on this worker's disk: its verified chunks, and the waits for those that are missing.

- `write` compares a chunk with the part's digest before a byte of it is kept: a chunk that differs is never stored.
- A part that is not being read or written costs no descriptor: there may be more parts than files may be open.
- Code that refers to a removed part can go on reading it: its file ends with its last user.
"""

import errno
import mmap
import os
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from blake3 import blake3

from echo_queue.errors import Problem, ServiceError
from echo_queue.weights.manifest import Part

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
                raise no_room(self._path.parent, len(view), error) from None
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


def no_room(folder: Path, count: int, error: OSError) -> ServiceError:
    """Returns the error for `count` bytes that could not be written in `folder`."""
    fix = "free space there, or name another folder, or lower weights.cache_max_bytes"
    if error.errno not in NO_ROOM:
        fix = "check the disk"
    return ServiceError(Problem("weights.cache_dir", f"{folder}: no room for {count} bytes ({error.strerror})", fix))
