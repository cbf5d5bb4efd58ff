"""Sources of chunks for a download: their interface, their errors, and the store, which every transport has.

- No source is trusted: a chunk counts when `PartFile.write` has compared it with the part's digest.
- `RouteSources` chooses the source from which a part is read now. The base class has the store alone: it is tried again
  while there is time, and bytes that stay wrong are reported as damaged. Transports put their own sources before it.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Protocol

from echo_queue.connections.storage.object_store import ObjectStore, ShortObject, Unreachable
from echo_queue.errors import DeadlineError, Problem, ServiceError
from echo_queue.weights.reader import Damaged
from workers.weights.cache.part_file import PartFile
from workers.weights.transport import STORE

THE_STORE = "the store"
"""The store's name among sources; no worker has one with a space."""
STORE_TRIES = 3
"""The number of times a wrong chunk is read from the store: the network may have corrupted it."""
STORE_PAUSE_S = 0.2
LONGEST_PAUSES = 10


class SourceFailed(Exception):
    """The reason why a source is no longer read."""

    bad = False
    """True if the source served bytes that were not published, or violated the protocol."""


class BadSource(SourceFailed):
    """The source served bytes that were not published, or violated the protocol."""

    bad = True


class Source(Protocol):
    """A place from which chunks are read."""

    name: str
    kind: str
    """The name under which the source's bytes are counted, such as "store" or "peer"."""

    def chunks(self, file: PartFile) -> Iterator[int]:
        """Writes chunks to `file`, from the first that is missing, until the part is whole; yields the bytes of each.

        Yields 0 each time that no bytes came for a while and the source is known to be alive. Raises `SourceFailed`.
        """


class StoreSource:
    """The object store as a source."""

    name, kind = THE_STORE, STORE

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def chunks(self, file: PartFile) -> Iterator[int]:
        part, index = file.part, file.next
        pieces = self._store.stream(part.key, part.start(index), part.chunk_bytes)
        try:
            for piece in pieces:
                if index == len(part.chunks) or not file.write(index, piece):
                    raise BadSource(f"the store's bytes are not those that were published: chunk {index} of {part.key}")
                index += 1
                yield len(piece)
            if index < len(part.chunks):
                raise BadSource(f"the store's object {part.key} ends at chunk {index}")
        except ShortObject as error:
            raise BadSource(str(error)) from None
        except Unreachable as error:
            raise SourceFailed(str(error)) from None
        finally:
            with suppress(AttributeError):
                pieces.close()  # type: ignore[attr-defined]


class RouteSources:
    """The sources of one route, for the threads of one download. `closed`: set when this worker stops fetching."""

    def __init__(self, route: str, store: Source, *, deadline_s: float, closed: threading.Event) -> None:
        self.route = route
        self._store = store
        self._closed = closed
        self._deadline_s = deadline_s
        self._give_up = time.monotonic() + deadline_s
        self._lock = threading.RLock()
        self._store_failures = 0
        self._last: Exception | None = None

    def current(self, file: PartFile) -> Source:
        """Returns the source from which the part is to be read now."""
        return self._store

    def took(self, source: Source, file: PartFile, length: int) -> bool:
        """Records a read of `length` bytes; returns whether to keep reading from `source`.

        `length` 0: the source is alive but has nothing yet. Raises `DeadlineError`.
        """
        self.check()
        if length:
            self._store_failures = 0
        return True

    def failed(self, source: Source, file: PartFile, why: SourceFailed) -> float:
        """Records that `source` failed; returns the seconds to wait before the next read.

        Raises `Damaged` if the store's own bytes are wrong, or `DeadlineError`.
        """
        with self._lock:
            self._last = why
            self.check()
            return self._store_failed(why)

    def rested(self) -> None:
        """Resets the rate clocks after a period in which there was nothing to fetch."""

    def renew(self) -> None:
        """Restarts the deadline, because parts were added to the route."""
        self._give_up = time.monotonic() + self._deadline_s

    def check(self) -> None:
        """Raises `DeadlineError` once the deadline has passed, `ServiceError` when this worker is leaving."""
        if self._closed.is_set():
            raise worker_leaving(self.route)
        if time.monotonic() > self._give_up:
            last = f"; the last failure: {self._last}" if self._last else ""
            what = f"{self.route} did not arrive within {self._deadline_s:.0f} s{last}"
            raise DeadlineError(Problem("weights", what, "see that the object store can be reached from here"))

    def end(self, whole: bool) -> None:
        """Ends the reading of the route. `whole`: the route is complete."""

    def _store_failed(self, why: SourceFailed) -> float:
        """Counts a failure of the store; returns the seconds until it is read again. Raises `Damaged`."""
        self._store_failures += 1
        if why.bad and self._store_failures >= STORE_TRIES:
            what = f"{why} ({STORE_TRIES} tries)"
            raise Damaged(Problem("weights", what, "the learner's next publication replaces it; check the disk"))
        return STORE_PAUSE_S * min(self._store_failures, LONGEST_PAUSES)


def worker_leaving(route: str) -> ServiceError:
    what = f"{route} was not fetched: this worker is leaving"
    return ServiceError(Problem("weights", what, "another worker fetches it for itself"))
