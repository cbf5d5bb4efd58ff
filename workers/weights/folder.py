"""The transport "folder": the workers of a site share parts in a folder that all of them see.

- The first worker that needs a part locks its temporary file, reads the part from the store, and puts it in place with
  one rename. The others wait, unless that worker dies or makes no progress. The next worker that starts removes
  temporary files without a lock.
- The folder is not trusted: a chunk counts if its digest is the published one. A part that differs is removed.
- A folder that is full, damaged or gone costs reads of the store, never weights.
"""

import fcntl
import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event
from typing import BinaryIO

from echo_queue.connections.storage.object_store import ObjectStore
from echo_queue.weights.manifest import Part
from workers.weights.cache.caching_transport import CachingTransport, open_part_cache
from workers.weights.cache.part_cache import PartCache
from workers.weights.cache.part_file import PartFile
from workers.weights.cache.sources import BadSource, RouteSources, Source, SourceFailed, StoreSource
from workers.weights.transport import Site

log = logging.getLogger(__name__)
PLACED, TEMPORARY, POLL_S = ".part", ".tmp", 0.05


def open_folder(site: Site) -> "FolderTransport":
    """Opens the transport with its folder and a part cache. Raises `ServiceError` if the part cache cannot be made."""
    config, settings = site.config, site.config.weights
    folder = (settings.folder or config.run.dir / "shared_parts") / config.run.name
    cache, shared = open_part_cache(config, site.worker), SharedFolder(folder, settings.folder_max_bytes)
    return FolderTransport(shared, site.store, cache, settings.chunk_deadline_s)


class SharedFolder:
    """The shared folder as a source: parts of one run, at most `most_bytes`. Any thread and process may use it."""

    name = kind = "folder"

    def __init__(self, folder: Path, most_bytes: int) -> None:
        self._folder, self._most_bytes = folder, most_bytes
        self._unreadable: set[str] = set()
        with suppress(OSError):  # the first claim reports what is wrong
            folder.mkdir(parents=True, exist_ok=True)
            for left in folder.glob(f"*{TEMPORARY}"):
                with self.claim(left) as (_, free):
                    if free:
                        left.unlink()

    def path(self, part: Part) -> Path:
        return self._folder / part.key.replace("/", "_")

    def has(self, part: Part) -> bool:
        return part.key not in self._unreadable and self.path(part).exists()

    def chunks(self, file: PartFile) -> Iterator[int]:
        part, path = file.part, self.path(file.part)
        try:
            with path.open("rb") as placed:
                os.utime(path)  # marks the part as used now
                placed.seek(part.start(file.next))
                for index in range(file.next, len(part.chunks)):
                    chunk = placed.read(part.length(index))
                    if not file.write(index, chunk):
                        path.unlink(missing_ok=True)
                        raise BadSource(f"{path} is not what was published: chunk {index}")
                    yield len(chunk)
        except OSError as error:
            self._unreadable.add(part.key)
            raise SourceFailed(f"{path} cannot be read: {error}") from None

    @contextmanager
    def claim(self, path: Path) -> Iterator[tuple[BinaryIO, bool]]:
        """Opens the temporary file of a part; yields it, and whether this worker alone has it. Raises `OSError`."""
        with path.with_suffix(TEMPORARY).open("ab") as file:
            mine = False
            with suppress(BlockingIOError, FileNotFoundError):  # another worker has it, or has placed it just now
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                mine = os.path.samestat(os.fstat(file.fileno()), Path(file.name).stat())
            yield file, mine

    def place(self, claim: BinaryIO, part: Part, data: memoryview) -> None:
        """Puts a part in place; removes the least recently used parts if there is no room. Raises `OSError`."""
        known = sorted(self._folder.glob(f"*{PLACED}"), key=lambda path: path.stat().st_mtime_ns)
        while known and sum(path.stat().st_size for path in known) + part.size > self._most_bytes:
            known.pop(0).unlink()
        claim.truncate(0)
        claim.write(data)
        claim.flush()
        Path(claim.name).rename(self.path(part))


class ClaimingStore(StoreSource):
    """The store as a source. One worker of the site reads each part, and puts it into the shared folder."""

    def __init__(self, store: ObjectStore, shared: SharedFolder, patience_s: float, closed: Event) -> None:
        super().__init__(store)
        self._shared, self._patience_s, self._closed = shared, patience_s, closed

    def chunks(self, file: PartFile) -> Iterator[int]:
        try:
            yield from self._share(file)
        except OSError as error:
            log.warning("%s is not shared: %s", file.part.key, error)
            yield from () if file.whole else super().chunks(file)

    def _share(self, file: PartFile) -> Iterator[int]:
        stamp, since_s = 0, time.monotonic()
        while not self._shared.has(file.part):
            with self._shared.claim(self._shared.path(file.part)) as (claim, mine):
                if mine and not self._shared.has(file.part):
                    for length in super().chunks(file):
                        os.utime(claim.name)  # shows the workers that wait that this one makes progress
                        yield length
                    return self._shared.place(claim, file.part, file.memory())
                if (now := os.fstat(claim.fileno()).st_mtime_ns) != stamp:
                    stamp, since_s = now, time.monotonic()
            if time.monotonic() - since_s > self._patience_s:
                raise OSError("the worker that reads it makes no progress")
            self._closed.wait(POLL_S)
            yield 0


class FolderRouteSources(RouteSources):
    """The sources of one route: the folder for each part that it has, else the store."""

    def __init__(self, route: str, store: Source, shared: SharedFolder, deadline_s: float, closed: Event) -> None:
        super().__init__(route, store, deadline_s=deadline_s, closed=closed)
        self._shared = shared

    def current(self, file: PartFile) -> Source:
        return self._shared if self._shared.has(file.part) else self._store

    def failed(self, source: Source, file: PartFile, why: SourceFailed) -> float:
        if source is not self._shared:
            return super().failed(source, file, why)
        log.warning("the store is read instead: %s", why)
        return 0.0


class FolderTransport(CachingTransport):
    """The transport "folder". `patience_s`: the longest wait for a worker that makes no progress with a part."""

    def __init__(self, shared: SharedFolder, store: ObjectStore, part_cache: PartCache, patience_s: float) -> None:
        super().__init__(part_cache)
        self._shared, self._store = shared, ClaimingStore(store, shared, patience_s, self._closed)

    def _sources(self, route: str, deadline_s: float, restart: bool) -> RouteSources:
        return FolderRouteSources(route, self._store, self._shared, deadline_s, self._closed)
