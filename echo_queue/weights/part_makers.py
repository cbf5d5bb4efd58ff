"""Makes the parts of one rank's share of a version: codes their pieces in threads, and stores each part as it is coded.

- The bytes do not depend on the number of threads or ranks: a part is a pure function of the two versions.
- A rank holds one version, the newest that is published, in host memory; and, while the next one is coded, that one
  where the learner made it, on its device or in host memory. Differences are computed there.
- Older versions are not held, but what the last publications changed is (`echo_queue.weights.undo`): deltas that span
  several publications are made from that.
- At most `UPLOADS` + 2 parts of a rank are in memory, as they are stored.
"""

import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Protocol

from echo_queue import config
from echo_queue.connections.storage.object_store import ObjectStore
from echo_queue.records import Version
from echo_queue.weights.ciphers import cut
from echo_queue.weights.coding import DeltaCoding
from echo_queue.weights.delta.codes import Codes, on_host
from echo_queue.weights.delta.encode import Settings, encode_piece
from echo_queue.weights.delta.format import Piece, seal
from echo_queue.weights.delta.pairs import HostPair, pair
from echo_queue.weights.delta.streams import Packed
from echo_queue.weights.delta.stretches import Stretch
from echo_queue.weights.gpu_lanes import reading
from echo_queue.weights.layout import Share
from echo_queue.weights.manifest import Part
from echo_queue.weights.undo import RecordingPair, Undo

if TYPE_CHECKING:
    from torch import Tensor

UPLOADS = 4
"""The number of parts that a rank uploads while it codes two further ones."""
CODING = 2
"""The number of parts whose pieces are coded at a time, so that no thread is idle while a part ends."""
CODINGS = {"fast": Settings(classes_below=0.0), "small": Settings()}
Encoded = tuple[Piece, tuple[Packed, ...]]
"""A piece and its streams."""


@dataclass(frozen=True)
class RouteOrder:
    """The route to make: to `version` from `base` (None: from nothing), which lies `span` publications back.

    A rank that has stored `limit` bytes of it makes no more parts.
    """

    version: Version
    base: Version | None = None
    span: int = 0
    limit: int = sys.maxsize


@dataclass(frozen=True)
class StoredPart:
    """A part that is stored, with the digests of its pieces. `undo_bytes`: what is kept of its changes."""

    part: Part
    digests: tuple[str, ...]
    undo_bytes: int = 0


class PartMakers(Protocol):
    """Those who make a version's parts: this process, or all ranks. One thread calls it."""

    def take(self, share: Share) -> None:
        """Takes a share of the next version."""
        ...

    def make(self, order: RouteOrder) -> Iterator[StoredPart | None]:
        """Begins at once to make a route; yields its parts in order, each once it is stored.

        None stands for each part that was left out, because of the limit. The iterator must be exhausted.
        """
        ...

    def discard(self) -> None:
        """Removes the parts of the route made last from the store."""
        ...

    def keep(self, changes: int) -> None:
        """Keeps the version taken last as the newest one, and what the last `changes` publications changed."""
        ...

    def close(self) -> None:
        """Says that nothing more is to be made."""
        ...


class PartMaker:
    """Makes the parts of one rank's share, as `settings` say. `threads`: those that code pieces."""

    def __init__(
        self, store: ObjectStore, settings: config.Weights, *, chunk_key: bytes | None = None, threads: int = 1
    ) -> None:
        self._store, self._chunk_bytes, self._chunk_key = store, settings.chunk_bytes, chunk_key
        self._coding, self._threads = DeltaCoding(settings.coding, threads), threads
        self._kept: Share | None = None
        """The newest published version."""
        self._next: Share | None = None
        """The version that is being published."""
        self._changes: deque[dict[Stretch, Undo]] = deque()
        """The changes of the last publications, the newest first."""
        self._recorded: dict[Stretch, Undo] = {}
        """The changes of the delta that was made last to the next version."""
        self._keys: list[str] = []
        """The parts of the route made last that may be stored."""

    def take(self, share: Share) -> None:
        self._next = share

    def make(self, order: RouteOrder) -> Iterator[StoredPart | None]:
        self._keys, self._recorded = [], {}
        making = _RouteMaking(self._share(), order, self._threads)
        return making.begin(partial(self._part, making))

    def discard(self) -> None:
        if self._keys:
            self._store.delete(sorted(self._keys))
        self._keys, self._recorded = [], {}

    def keep(self, changes: int) -> None:
        share, self._next = self._share(), None
        self._changes.appendleft(self._recorded)
        while len(self._changes) > changes:
            self._changes.pop()
        self._kept = _on_host(share, self._kept)
        self._recorded = {}
        self._coding.choose()

    def close(self) -> None:
        """There is nothing to end."""

    def _share(self) -> Share:
        share = self._next or self._kept
        if share is None:
            raise ValueError("there is no version to publish")
        return share

    def _part(self, making: "_RouteMaking", place: int) -> StoredPart | None:
        """Thread of a part: codes and stores it; None if the route has come to its limit."""
        coded, order = making.coded(place, partial(self._coded, making)), making.order
        if coded is None:
            return None
        pieces, streams = zip(*coded, strict=True)
        part, data = cut(order.version, order.base, seal(pieces, streams).data, self._chunk_bytes, self._chunk_key)
        if not making.fits(part.size):
            return None
        self._keys.append(part.key)
        with self._coding.on_its_way() if order.base is not None else nullcontext():
            self._store.put(part.key, data)
        undone = (self._recorded.get(stretch) for stretch in making.share.layout.parts[place])
        undo_bytes = sum(undo.nbytes for undo in undone if undo is not None)
        return StoredPart(part, tuple(piece.digest for piece in pieces), undo_bytes)

    def _coded(self, making: "_RouteMaking", stretch: Stretch) -> Encoded:
        """Coding thread: codes one piece, on the device that has the new version."""
        order, row, settings = making.order, making.share.rows[stretch], CODINGS[self._coding.word]
        with making.reading() as read:
            if order.base is None:
                return encode_piece(stretch, None, read(row), settings)
            if self._next is None:
                codes = read(row)
                with self._coding.timed():
                    return encode_piece(stretch, HostPair(self._before(stretch, order.span), codes), codes, settings)
            assert self._kept is not None, "a delta needs a base"
            base = self._kept.rows[stretch].to(row.device, non_blocking=True)
            codes = read(row)
            versions = RecordingPair(pair(base, row, codes))
            with self._coding.timed():
                encoded = encode_piece(stretch, versions, codes, settings)
            if versions.undo is not None:
                self._recorded[stretch] = versions.undo
            return encoded

    def _before(self, stretch: Stretch, span: int) -> Codes:
        """Returns the codes of `span` publications ago."""
        assert self._kept is not None
        codes = on_host(self._kept.rows[stretch]).copy()
        for changed in list(self._changes)[:span]:
            changed[stretch].take_back(codes)
        return codes


class _RouteMaking:
    """The threads that make one rank's parts of a route."""

    def __init__(self, share: Share, order: RouteOrder, threads: int) -> None:
        self.share, self.order = share, order
        self.coding, self.reading = threading.Semaphore(CODING), reading(share.rows.values())
        self._pieces, self._parts = ThreadPoolExecutor(threads, "piece"), ThreadPoolExecutor(UPLOADS + CODING, "part")
        self._size, self._lock = 0, threading.Lock()

    def begin(self, make: Callable[[int], StoredPart | None]) -> Iterator[StoredPart | None]:
        """Begins to make all parts; yields what `make` returns for each place, in order."""
        return self._results([self._parts.submit(make, place) for place in self.share.places])

    def coded(self, place: int, code: Callable[[Stretch], Encoded]) -> list[Encoded] | None:
        """Thread of a part: codes its pieces; None if the limit is reached."""
        with self.coding:
            if self._size >= self.order.limit:
                return None
            return list(self._pieces.map(code, self.share.layout.parts[place]))

    def fits(self, size: int) -> bool:
        """Counts a part of `size` bytes. Returns whether the route still is below its limit."""
        with self._lock:
            self._size += size
            return self._size < self.order.limit

    def _results(self, parts: list[Future[StoredPart | None]]) -> Iterator[StoredPart | None]:
        try:
            for part in parts:
                yield part.result()
        finally:
            self._parts.shutdown(cancel_futures=True)
            self._pieces.shutdown()


def _on_host(share: Share, before: Share | None) -> Share:
    """Returns the share in host memory; rows from a GPU go into the memory of the share `before`, where they fit."""
    row = _gpu_row(share)
    if row is None:
        return share
    import torch

    from echo_queue.weights.host_memory import rooms_for

    there = {stretch: new for stretch, new in share.rows.items() if new.is_cuda}
    known = before.rows if before is not None else {}
    rooms = {stretch: known[stretch] for stretch in there if stretch in known}
    missing = {stretch: new for stretch, new in there.items() if stretch not in known}
    rooms |= zip(missing, rooms_for(list(missing.values()), pinned=True), strict=True)
    for stretch, new in there.items():
        rooms[stretch].copy_(new, non_blocking=True)
    torch.cuda.current_stream(row.device).synchronize()
    return replace(share, rows={**share.rows, **rooms})


def _gpu_row(share: Share) -> "Tensor | None":
    """Returns the first row that is on a GPU, if any. Others may be on the CPU, such as the description of adapters."""
    return next((row for row in share.rows.values() if row.is_cuda), None)
