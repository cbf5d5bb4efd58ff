"""The transport "folder": workers of a site share what one of them has read from the store, in a folder they all see.

- The first worker that needs a part locks its temporary file, reads the store, and places the part with one rename; the
  others wait, unless that worker dies or stands still. Temporary files without a lock are swept by the next worker.
- The folder is believed in nothing: a chunk counts if its digest is the published one. A part that differs is removed.
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

from echo_queue.storage.object_store import ObjectStore
from echo_queue.weights.manifest import Part
from workers.weights.cache.caching_transport import CachingTransport, open_part_cache
from workers.weights.cache.part_cache import PartCache, PartFile
from workers.weights.cache.sources import BadSource, RouteSources, Source, SourceFailed, StoreSource
from workers.weights.transport import Site

log = logging.getLogger(__name__)
PLACED, TEMPORARY, POLL_S = ".part", ".tmp", 0.05


def open_folder(site: Site) -> "FolderTransport":
    config, settings = site.config, site.config.weights
    folder = (settings.folder or config.run.dir / "shared_parts") / config.run.name
    cache, shared = open_part_cache(config, site.worker), SharedFolder(folder, settings.folder_max_bytes)
    return FolderTransport(shared, site.store, cache, settings.chunk_deadline_s)


class SharedFolder:
    """Parts of one run, within `most_bytes`, as a source; for any number of threads and processes."""

    name = kind = "folder"

    def __init__(self, folder: Path, most_bytes: int) -> None:
        self._folder, self._most_bytes = folder, most_bytes
        self._unreadable: set[str] = set()
        with suppress(OSError):  # the first claim tells what is wrong
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
                os.utime(path)  # it was used now
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
        """The temporary file of a part, and whether it is this worker's alone. Raises `OSError`."""
        with path.with_suffix(TEMPORARY).open("ab") as file:
            mine = False
            with suppress(BlockingIOError, FileNotFoundError):  # another worker has it, or has placed it just now
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                mine = os.path.samestat(os.fstat(file.fileno()), Path(file.name).stat())
            yield file, mine

    def place(self, claim: BinaryIO, part: Part, data: memoryview) -> None:
        """Removes what was used least recently, if there is no room for the part. Raises `OSError`."""
        known = sorted(self._folder.glob(f"*{PLACED}"), key=lambda path: path.stat().st_mtime_ns)
        while known and sum(path.stat().st_size for path in known) + part.size > self._most_bytes:
            known.pop(0).unlink()
        claim.truncate(0)
        claim.write(data)
        claim.flush()
        Path(claim.name).rename(self.path(part))


class ClaimingStore(StoreSource):
    """The store: each part is read by one worker of the site, which places it for the others."""

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
                        os.utime(claim.name)  # the workers that wait see that this one gets on
                        yield length
                    return self._shared.place(claim, file.part, file.memory())
                if (now := os.fstat(claim.fileno()).st_mtime_ns) != stamp:
                    stamp, since_s = now, time.monotonic()
            if time.monotonic() - since_s > self._patience_s:
                raise OSError("the worker that reads it stands still")
            self._closed.wait(POLL_S)
            yield 0


class FolderRouteSources(RouteSources):
    """The folder where it has a part, else the store."""

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
    def __init__(self, shared: SharedFolder, store: ObjectStore, part_cache: PartCache, patience_s: float) -> None:
        super().__init__(part_cache)
        self._shared, self._store = shared, ClaimingStore(store, shared, patience_s, self._closed)

    def _sources(self, route: str, deadline_s: float, restart: bool) -> RouteSources:
        return FolderRouteSources(route, self._store, self._shared, deadline_s, self._closed)
