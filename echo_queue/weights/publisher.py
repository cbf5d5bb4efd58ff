"""Publishes versions: stores parts while later ones are being encoded, and the signed manifest last and once.

- Readers see a version whole or not at all. Publishing a version again with the same tensors changes nothing;
  with other tensors it raises `FencedError`, because only another learner can have published the first ones.
- A version's own route is the delta from the version published before, unless that is hardly smaller than an anchor.
  `further` adds deltas that span several publications, aligned like a skip list, and anchors.
- Parts of a version's own route are announced as they are stored, except for the first version of a lineage, whose
  weights most workers have from elsewhere.
- One copy of each version that a later delta starts from is kept in a file; only a few parts are in memory at a time.
"""

import math
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from echo_queue import config
from echo_queue.errors import FencedError, Problem
from echo_queue.records import Published, Version
from echo_queue.storage.object_store import ObjectStore
from echo_queue.weights import delta
from echo_queue.weights.announcements import Announce, OrderedAnnouncements
from echo_queue.weights.cheapest_path import Edge, cheapest
from echo_queue.weights.ciphers import cut
from echo_queue.weights.manifest import (
    Announcement,
    Manifest,
    Part,
    Route,
    TensorInfo,
    digest,
    manifest_key,
    root_digest,
    route_key,
)
from echo_queue.weights.signatures import Signer
from echo_queue.weights.tensors import cast, described, kept, moved, untie

if TYPE_CHECKING:
    from torch import Tensor

UPLOADS = 4
"""The number of parts that are uploaded while the next one is encoded."""
WORTHWHILE = 0.9
"""A delta must be smaller than this share of the anchor, or of the routes that already lead to the same version."""
SPARSE = 0.5
"""Deltas that span several publications are made only where a version's own delta is smaller than this share of an
anchor: where most elements change, a delta that spans two publications is hardly smaller than the anchor."""
OVERDUE = 2
"""An anchor that is due for this many periods is made even if the next version is waiting."""

Hurried = Callable[[], bool]


@dataclass(frozen=True, eq=False)
class Publication:
    """A published version, and a copy of its tensors from which later deltas start."""

    version: Version
    root: str
    infos: tuple[TensorInfo, ...]
    aliases: Mapping[str, str]
    tensors: "Mapping[str, Tensor]"

    def like(self, tensors: "Mapping[str, Tensor]", aliases: Mapping[str, str]) -> bool:
        """Returns whether a delta may lead from this version to `tensors`: names, types and shapes are the same."""
        mine = {info.name: (info.dtype, info.shape) for info in self.infos}
        theirs = {info.name: (info.dtype, info.shape) for info in described(tensors, dict.fromkeys(tensors, ()))}
        return mine == theirs and self.aliases == aliases


class WeightPublisher:
    """Publishes one learner's versions of run `run`, in ascending order; `folder` gets the copies.

    One thread uses it. `announce` is called in that thread and in those of its uploads.
    """

    def __init__(
        self,
        store: ObjectStore,
        run: str,
        signer: Signer,
        settings: config.Weights,
        folder: Path,
        *,
        chunk_key: bytes | None = None,
        announce: Announce = lambda announcement, document: None,
    ) -> None:
        self._store, self._run, self._signer, self._settings = store, run, signer, settings
        self._folder, self._chunk_key, self._announce = folder, chunk_key, announce
        self._codec = delta.Settings(shard_bytes=settings.part_bytes)
        self.stored: Counter[str] = Counter()
        """The bytes stored for routes since the start, by kind ("anchor", "delta")."""
        self._start_over()

    def publish(self, version: Version, tensors: "Mapping[str, Tensor]", dtype: str) -> Published:
        """Stores `tensors` (floating ones as `dtype`: "float32" or "bfloat16") and returns the pointer to them.

        Raises `FencedError` if other weights were published as this version, `ServiceError` if the store fails.
        """
        distinct, aliases = untie(tensors)
        given = cast(distinct, dtype)
        copy = kept(self._folder, given)
        self._begin(version, copy, aliases)
        route, infos = self._main(version, given, copy, aliases)
        manifest = Manifest(self._run, version, infos, aliases, route.root, route)
        envelope, key = self._signer.sign(manifest.encode()), manifest_key(version)
        self._put_once(key, envelope)
        self._place += 1
        self._bases[self._place] = Publication(version, route.root, infos, aliases, copy)
        self._note(route)
        return Published(version, key, digest(envelope))

    def further(self, version: Version, hurried: Hurried = lambda: False) -> list[Route]:
        """Stores and returns further routes to `version`, which was published last: those that are due, deltas only if
        they are smaller than the routes that exist.

        Once `hurried` says that the next version waits, deltas are left out, and anchors are put off.
        """
        here = self._bases.get(self._place)
        if here is None or here.version != version:
            raise ValueError(f"{version} is not the version that was published last")
        routes = [self._extra(None, here)] if self._anchor_due(hurried()) else []
        for span in self._settings.skips if self._sparse(version) else ():
            if self._place >= span and self._place % span == 0 and not hurried():
                routes.append(self._extra(self._bases[self._place - span], here))
        return [route for route in routes if route is not None]

    # Which routes -----------------------------------------------------------------------------------------------------

    def _start_over(self) -> None:
        """Forgets all publications: no delta starts from them any more."""
        self._place = -1
        """The newest publication's place, counted from the first one that a delta to a later one can start from."""
        self._bases: dict[int, Publication] = {}
        """Publications by place: the newest, and those from which a further delta will start."""
        self._edges: list[Edge] = []
        self._anchor: tuple[int, int] | None = None
        """The place and the bytes of the newest anchor."""

    def _begin(self, version: Version, tensors: "Mapping[str, Tensor]", aliases: Mapping[str, str]) -> None:
        """Keeps only publications from before `version` that can be a base for it."""
        last = self._bases.get(self._place)
        if last is not None and last.version == version:  # published again: from the same base
            del self._bases[self._place]
            self._edges = [edge for edge in self._edges if edge.version != version]
            self._place -= 1
            last = self._bases.get(self._place)
        if last is None or last.version.lineage != version.lineage or not last.like(tensors, aliases):
            self._start_over()
            return
        if last.version > version:
            raise ValueError(f"{version} after {last.version}: versions only ascend")
        self._forget()

    def _forget(self) -> None:
        """Forgets the publications from which no delta to a later one starts."""
        needed = {self._place, *(self._place - self._place % span for span in self._settings.skips)}
        self._bases = {place: base for place, base in self._bases.items() if place in needed}
        oldest = self._bases[min(self._bases)].version
        self._edges = [edge for edge in self._edges if edge.base is not None and edge.base >= oldest]

    def _main(
        self,
        version: Version,
        given: "Mapping[str, Tensor]",
        copy: "Mapping[str, Tensor]",
        aliases: Mapping[str, str],
    ) -> tuple[Route, tuple[TensorInfo, ...]]:
        """Stores the delta from the version before, or an anchor; returns that route and the tensors' descriptions."""
        pieces: dict[str, list[str]] = {}

        def shards(base: "Mapping[str, Tensor]", new: "Mapping[str, Tensor]") -> Iterable[bytes]:
            pieces.clear()
            for shard in delta.encode(base, new, aliases, self._codec):
                for piece in shard.pieces:
                    pieces.setdefault(piece.names[0], []).append(piece.digest)
                yield shard.data

        parts, base = None, self._bases.get(self._place)
        known = base is not None
        if base is not None and self._anchor is not None:
            ours, theirs = _side_by_side(base.tensors, given, copy)
            parts = self._upload(version, base, shards(ours, theirs), WORTHWHILE * self._anchor[1], announce=True)
        if parts is None:
            base, parts = None, self._upload(version, None, shards({}, copy), announce=known) or ()
        infos = described(copy, pieces)
        root = root_digest(infos, aliases)
        return self._route(version, base, root, parts), infos

    def _anchor_due(self, hurried: bool) -> bool:
        since = self._place - (self._anchor[0] if self._anchor else 0)
        return since >= self._settings.anchor_every * (OVERDUE if hurried else 1)

    def _sparse(self, version: Version) -> bool:
        own = next((edge.size for edge in self._edges if edge.version == version and edge.base is not None), None)
        return own is not None and self._anchor is not None and own < SPARSE * self._anchor[1]

    def _extra(self, base: Publication | None, here: Publication) -> Route | None:
        """Stores a route beside the manifest's own, with its own signed document; None if it is not worth its bytes."""
        tensors: Mapping[str, Tensor] = {}
        limit = math.inf
        if base is not None and self._anchor is not None:
            tensors = base.tensors
            limit = WORTHWHILE * min(self._anchor[1], self._detour(base.version, here.version))
        shards = (shard.data for shard in delta.encode(tensors, here.tensors, here.aliases, self._codec))
        parts = self._upload(here.version, base, shards, limit)
        if parts is None:
            return None
        route = self._route(here.version, base, here.root, parts)
        self._put_once(route_key(route.version, route.base), self._signer.sign(route.encode()))
        self._note(route)
        return route

    def _detour(self, base: Version, version: Version) -> float:
        """The bytes of the routes that already lead from `base` to `version`; infinite if there are none."""
        path = cheapest((edge for edge in self._edges if edge.base is not None), base, version)
        return math.inf if path is None else sum(edge.size for edge in path)

    def _route(self, version: Version, base: Publication | None, root: str, parts: tuple[Part, ...]) -> Route:
        start, start_root = _start(base)
        return Route(self._run, version, start, root, start_root, parts)

    def _note(self, route: Route) -> None:
        self._edges.append(Edge(route.base, route.version, route.size))
        self.stored["anchor" if route.base is None else "delta"] += route.size
        if route.base is None:
            self._anchor = self._place, route.size

    # The store --------------------------------------------------------------------------------------------------------

    def _upload(
        self,
        version: Version,
        base: Publication | None,
        shards: Iterable[bytes],
        limit: float = math.inf,
        *,
        announce: bool = False,
    ) -> tuple[Part, ...] | None:
        """Stores parts as they are made; `announce`: announces each one.

        Returns None, and leaves nothing in the store, if the parts come to `limit` bytes or more.
        """
        start, _ = _start(base)
        parts: list[Part] = []
        uploads: deque[Future[None]] = deque()
        size = 0
        announcements = OrderedAnnouncements(partial(self._announce_part, version, base))
        with ThreadPoolExecutor(UPLOADS) as pool:
            for shard in shards:
                part, data = cut(version, start, shard, self._settings.chunk_bytes, self._chunk_key)
                size += part.size
                if size >= limit:
                    break
                parts.append(part)
                uploads.append(pool.submit(self._put, part.key, data))
                if announce:
                    announcements.follow(part, uploads[-1])
                if len(uploads) > UPLOADS:
                    uploads.popleft().result()
            for upload in uploads:
                upload.result()
        if size < limit:
            return tuple(parts)
        self._store.delete([part.key for part in parts])
        return None

    def _announce_part(self, version: Version, base: Publication | None, place: int, part: Part) -> None:
        """Upload thread, or the publisher's own: signs and passes on one announcement."""
        start, start_root = _start(base)
        announcement = Announcement(self._run, version, start, start_root, place, part)
        self._announce(announcement, self._signer.sign(announcement.encode()))

    def _put(self, key: str, data: bytes) -> None:
        self._store.put(key, data)

    def _put_once(self, key: str, envelope: bytes) -> None:
        if not self._store.put(key, envelope, once=True):
            what = "other weights were published as this version: another learner trains this run"
            raise FencedError(Problem(key, what, "let only one learner run"))


def _start(base: Publication | None) -> tuple[Version, str] | tuple[None, None]:
    """Returns the version and the root that a route begins at; an anchor begins at nothing."""
    return (None, None) if base is None else (base.version, base.root)


def _side_by_side(
    base: "Mapping[str, Tensor]", given: "Mapping[str, Tensor]", copy: "Mapping[str, Tensor]"
) -> "tuple[Mapping[str, Tensor], Mapping[str, Tensor]]":
    """Returns both versions on the device that holds the new one: differences are computed there."""
    device = next((tensor.device for tensor in given.values()), None)
    if device is None or device.type == "cpu":
        return base, copy
    return moved(base, device), given
