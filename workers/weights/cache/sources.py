"""Where a download reads chunks from: the interface of a source, how one fails, and the store, which is always there.

- A source is believed in nothing: a chunk counts when `PartFile.write` has compared it with the part's digest.
- `RouteSources` says which source a part is read from now. This one knows the store alone: it is tried again while
  there is time, and what it has wrong time after time is damaged. Transports put their own sources before it.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Protocol

from echo_queue.errors import DeadlineError, Problem, ServiceError
from echo_queue.storage.object_store import ObjectStore, ShortObject, Unreachable
from echo_queue.weights.reader import Damaged
from workers.weights.cache.part_cache import PartFile
from workers.weights.transport import STORE

STORE_TRIES = 3
"""How often a chunk is read that the store has wrong: the network may have spoiled it."""
STORE_PAUSE_S = 0.2
LONGEST_PAUSES = 10


class SourceFailed(Exception):
    """Why a source is not read from any further."""

    bad = False
    """Whether it served what is not what was published, or does not speak the protocol."""


class BadSource(SourceFailed):
    bad = True


class Source(Protocol):
    name: str
    kind: str
    """Under which its bytes are counted, such as "store" or "peer"."""

    def chunks(self, file: PartFile) -> Iterator[int]:
        """Lands chunks, from the first that is missing, until the part is whole; yields the bytes of each.

        Yields 0 each time that nothing came for a while and the source is known to live. Raises `SourceFailed`.
        """


class StoreSource:
    """The object store."""

    name = kind = STORE

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
    """The sources of one route, for the threads of one download. `closed`: once set, this worker fetches no more."""

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
        """What the part is to be read from now."""
        return self._store

    def took(self, source: Source, file: PartFile, length: int) -> bool:
        """Counts a read of `length` bytes (0: the source lives, and has nothing yet); whether to go on with `source`.

        Raises `DeadlineError`.
        """
        self.check()
        if length:
            self._store_failures = 0
        return True

    def failed(self, source: Source, file: PartFile, why: SourceFailed) -> float:
        """Takes note that `source` failed; seconds to wait before going on. Raises `Damaged`, if it is the store's own
        bytes that are wrong, or `DeadlineError`."""
        with self._lock:
            self._last = why
            self.check()
            return self._store_failed(why)

    def rested(self) -> None:
        """Nothing was to be fetched for a while, for which no source can be blamed."""

    def renew(self) -> None:
        """There is more to fetch than was known: the deadline counts from now."""
        self._give_up = time.monotonic() + self._deadline_s

    def check(self) -> None:
        """Raises `DeadlineError` when it is too late, `ServiceError` when this worker is leaving."""
        if self._closed.is_set():
            raise worker_leaving(self.route)
        if time.monotonic() > self._give_up:
            last = f"; the last failure: {self._last}" if self._last else ""
            what = f"{self.route} did not arrive within {self._deadline_s:.0f} s{last}"
            raise DeadlineError(Problem("weights", what, "see that the object store can be reached from here"))

    def end(self, whole: bool) -> None:
        """Nothing more will be read. `whole`: because the route is complete."""

    def _store_failed(self, why: SourceFailed) -> float:
        """Seconds until the store is read again."""
        self._store_failures += 1
        if why.bad and self._store_failures >= STORE_TRIES:
            what = f"{why} ({STORE_TRIES} tries)"
            raise Damaged(Problem("weights", what, "the learner's next publication replaces it; check the disk"))
        return STORE_PAUSE_S * min(self._store_failures, LONGEST_PAUSES)


def worker_leaving(route: str) -> ServiceError:
    what = f"{route} was not fetched: this worker is leaving"
    return ServiceError(Problem("weights", what, "another worker fetches it for itself"))
