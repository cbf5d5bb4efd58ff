"""Publishes versions: stores parts while later ones are being coded, and the signed manifest last and once.

- Readers see a version whole or not at all. If a publication fails, the same version may be published again; once it
  is published, versions only ascend. Other weights under the name of a published version raise `FencedError`, because
  only another learner can have published the first ones.
- A version's own route is the delta from the version published before, unless that is hardly smaller than an anchor.
  `further` adds deltas that span several publications, aligned like a skip list, and anchors.
- Parts of a version's own route are announced in order, as they are stored, except for the first version of a lineage,
  whose weights most workers have from elsewhere.
- The part makers hold the newest version once, and what the last publications changed; this class holds no weights.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from echo_queue import config
from echo_queue.connections.storage.object_store import ObjectStore
from echo_queue.errors import FencedError, Problem
from echo_queue.records import Published, Version
from echo_queue.weights.cheapest_path import Edge, cheapest
from echo_queue.weights.layout import Layout, Share
from echo_queue.weights.manifest import (
    Announcement,
    Manifest,
    Part,
    Route,
    digest,
    manifest_key,
    root_digest,
    route_key,
)
from echo_queue.weights.part_makers import PartMaker, PartMakers, RouteOrder, StoredPart
from echo_queue.weights.signatures import Signer

if TYPE_CHECKING:
    from torch import Tensor

WORTHWHILE = 0.9
"""A delta must be smaller than this share of the anchor, or of the routes that already lead to the same version."""
SPARSE = 0.5
"""Deltas that span several publications are made only where a version's own delta is smaller than this share of an
anchor: where most elements change, a delta that spans two publications is hardly smaller than the anchor."""
DEBT = 2.0
"""An anchor is due once the deltas since the last one come to so many times its bytes. So a worker that comes late
fetches at most what three anchors have, and anchors cost the learner at most half of what its deltas do."""
OVERDUE = 2
"""An anchor that is due this many times over is made even if the next version is waiting."""

Announce = Callable[[Announcement, bytes], object]
"""Announces a part to the workers by its signed document; returns at once."""
Hurried = Callable[[], bool]


@dataclass(frozen=True, eq=False)
class Publication:
    """A published version. `undo_bytes`: what the makers keep to get from it to the version published before."""

    version: Version
    root: str
    layout: Layout
    undo_bytes: int


class WeightPublisher:
    """Publishes one learner's versions of run `run`, in ascending order. One thread uses it.

    `makers`: those who make the parts; by default this process alone, with `chunk_key` if the run encrypts.
    """

    def __init__(
        self,
        store: ObjectStore,
        run: str,
        signer: Signer,
        settings: config.Weights,
        *,
        chunk_key: bytes | None = None,
        makers: PartMakers | None = None,
        announce: Announce = lambda announcement, document: None,
    ) -> None:
        self._store, self._run, self._signer, self._settings = store, run, signer, settings
        self._makers = makers or PartMaker(store, settings, chunk_key=chunk_key)
        self._announce = announce
        self.stored: Counter[str] = Counter()
        """The bytes stored for routes since the start, by kind ("anchor", "delta")."""
        self._start_over()

    def publish(self, version: Version, tensors: "Mapping[str, Tensor]", dtype: str) -> Published:
        """Publishes a copy of `tensors` as `publish_share` does; floating ones as `dtype` ("float32" or "bfloat16")."""
        return self.publish_share(version, Share.whole(tensors, dtype, self._settings.part_bytes))

    def publish_share(self, version: Version, share: Share) -> Published:
        """Stores a version, of which this process has `share`, and returns the pointer to it.

        Raises `FencedError` if other weights were published as this version, `ServiceError` if the store fails.
        """
        base = self._base_for(version, share.layout)
        self._makers.take(share)
        base, parts = self._main(version, base, len(share.layout.parts) > 1)
        infos = share.layout.described([part.digests for part in parts])
        route = self._route(version, base, root_digest(infos, share.layout.aliases), parts)
        manifest = Manifest(self._run, version, infos, share.layout.aliases, route.root, route)
        envelope, key = self._signer.sign(manifest.encode()), manifest_key(version)
        self._put_once(key, envelope)
        self._keep(route, share.layout, sum(part.undo_bytes for part in parts))
        return Published(version, key, digest(envelope))

    def further(self, version: Version, hurried: Hurried = lambda: False) -> list[Route]:
        """Stores and returns further routes to `version`, which was published last: those that are due, deltas only if
        they are smaller than the routes that exist.

        Once `hurried` says that the next version waits, deltas are left out, and anchors are put off.
        """
        here = self._past.get(self._place)
        if here is None or here.version != version:
            raise ValueError(f"{version} is not the version that was published last")
        routes = [self._extra(here, 0)] if self._anchor_due(hurried()) else []
        for span in self._settings.skips if self._sparse(version) else ():
            if span <= self._changes and self._place % span == 0 and not hurried():
                routes.append(self._extra(here, span))
        return [route for route in routes if route is not None]

    # Which routes -----------------------------------------------------------------------------------------------------

    def _start_over(self) -> None:
        """Forgets all publications: no delta starts from them any more."""
        self._place = -1
        """The newest publication's place, counted from the first one that a delta to a later one can start from."""
        self._past: dict[int, Publication] = {}
        """Publications by place: those that a delta may start from, the newest among them."""
        self._changes = 0
        """The number of last publications of which the makers keep the changes."""
        self._edges: list[Edge] = []
        self._anchor: tuple[int, int] | None = None
        """The place and the bytes of the newest anchor."""
        self._owed = 0
        """The bytes of the versions' own deltas since then."""

    def _base_for(self, version: Version, layout: Layout) -> Publication | None:
        """Returns the publication that a delta to `version` starts from; None if there is none."""
        last = self._past.get(self._place)
        if last is None or last.version.lineage != version.lineage or last.layout != layout:
            self._start_over()
            return None
        if last.version >= version:
            raise ValueError(f"{version} after {last.version}: versions only ascend")
        return last

    def _main(
        self, version: Version, base: Publication | None, several: bool
    ) -> tuple[Publication | None, tuple[StoredPart, ...]]:
        """Stores the delta from `base`, or an anchor; returns what it starts from, and its parts.

        `several`: whether the route has more parts than one, and so is worth announcing.
        """
        announce = several and base is not None
        if base is not None and self._anchor is not None:
            order = RouteOrder(version, base.version, 1, int(WORTHWHILE * self._anchor[1]))
            parts = self._make(order, base.root, announce=announce)
            if parts is not None:
                return base, parts
        return None, self._make(RouteOrder(version), announce=announce) or ()

    def _keep(self, route: Route, layout: Layout, undo_bytes: int) -> None:
        """Makes the version of its own `route` the base of what follows. The changes that are kept come, together, to
        no more than the weights do."""
        self._place += 1
        self._past[self._place] = Publication(route.version, route.root, layout, undo_bytes)
        self._changes = 0 if route.base is None else self._affordable(layout.nbytes)
        self._makers.keep(self._changes)
        self._past = {place: one for place, one in self._past.items() if place >= self._place - self._changes}
        oldest = self._past[min(self._past)].version
        self._edges = [edge for edge in self._edges if edge.base is not None and edge.base >= oldest]
        self._owed += route.size if route.base is not None else 0
        self._note(route)

    def _affordable(self, most: int) -> int:
        """Returns how many of the last publications' changes may be kept, of those that are, in `most` bytes."""
        longest = min(self._changes + 1, max(self._settings.skips, default=0))
        for changes in range(longest):
            most -= self._past[self._place - changes].undo_bytes
            if most < 0:
                return changes
        return longest

    def _anchor_due(self, hurried: bool) -> bool:
        place, size = self._anchor or (0, 0)
        times = OVERDUE if hurried else 1
        return self._owed > DEBT * size * times or self._place - place >= self._settings.anchor_every * times

    def _sparse(self, version: Version) -> bool:
        own = next((edge.size for edge in self._edges if edge.version == version and edge.base is not None), None)
        return own is not None and self._anchor is not None and own < SPARSE * self._anchor[1]

    def _extra(self, here: Publication, span: int) -> Route | None:
        """Stores a route beside the manifest's own, with its own signed document; None if it is not worth its bytes.

        `span`: the publications that the delta spans; 0 for an anchor.
        """
        base = self._past[self._place - span] if span else None
        order = RouteOrder(here.version)
        if base is not None and self._anchor is not None:
            limit = WORTHWHILE * min(self._anchor[1], self._detour(base.version, here.version))
            order = RouteOrder(here.version, base.version, span, int(limit))
        parts = self._make(order)
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

    def _route(self, version: Version, base: Publication | None, root: str, parts: Iterable[StoredPart]) -> Route:
        start, start_root = (None, None) if base is None else (base.version, base.root)
        return Route(self._run, version, start, root, start_root, tuple(part.part for part in parts))

    def _note(self, route: Route) -> None:
        self._edges.append(Edge(route.base, route.version, route.size))
        self.stored["anchor" if route.base is None else "delta"] += route.size
        if route.base is None:
            self._anchor, self._owed = (self._place, route.size), 0

    # The store --------------------------------------------------------------------------------------------------------

    def _make(
        self, order: RouteOrder, base_root: str | None = None, *, announce: bool = False
    ) -> tuple[StoredPart, ...] | None:
        """Lets a route be made; `announce`: announces each part once it and all before it are stored.

        Returns None, and leaves nothing in the store, if the parts come to the order's limit.
        """
        parts: list[StoredPart] = []
        size, whole = 0, True
        for place, part in enumerate(self._makers.make(order)):
            size += part.part.size if part is not None else 0
            whole = whole and part is not None and size < order.limit
            if part is not None and whole:
                parts.append(part)
                if announce:
                    self._announce_part(order, base_root, place, part.part)
        if whole:
            return tuple(parts)
        self._makers.discard()
        return None

    def _announce_part(self, order: RouteOrder, base_root: str | None, place: int, part: Part) -> None:
        """Signs and passes on one announcement."""
        announcement = Announcement(self._run, order.version, order.base, base_root, place, part)
        self._announce(announcement, self._signer.sign(announcement.encode()))

    def _put_once(self, key: str, envelope: bytes) -> None:
        if not self._store.put(key, envelope, once=True):
            what = "other weights were published as this version: another learner trains this run"
            raise FencedError(Problem(key, what, "let only one learner run"))
