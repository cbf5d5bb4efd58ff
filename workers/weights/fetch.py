"""From the pointer to a published version to its parts on this machine, and from these to the stage.

- Only what is signed with the key that was pinned when this worker joined is ever read; another key ends the worker.
- Where something is staged, all of a way is here before the stage is touched; where nothing is, parts are decoded as
  they come, so that a worker that joins serves a moment after its last byte. A way that the cache cannot hold whole
  comes route by route in either case. What was prefetched on another way has made room before the first byte.
- The cheapest way is taken from what is staged; the base model that this worker brought along counts as staged, if it
  is bit for bit the version 0 that the learner published. It is read only while that one is in the store.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from echo_queue.errors import EchoQueueError
from echo_queue.records import Published, Version
from echo_queue.storage.object_store import MissingObject, ObjectStore
from echo_queue.weights import reader
from echo_queue.weights.manifest import Manifest, Route, manifest_key
from workers.weights.fetch_thread import Bring, Fetcher
from workers.weights.key_pinning import PinnedKey
from workers.weights.peers.part_cache import PartCache
from workers.weights.staging import Stage, Whole

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, eq=False)
class FetchedVersion:
    """All that the stage needs to become a version, here or on its way; parts by their key."""

    published: Published
    manifest: Manifest
    routes: tuple[Route, ...]
    parts: dict[str, Whole]


class VersionFetcher:
    """`base` gives the tensors of the base model, while the engine serves nothing else. `make_way` is told of routes
    that are going to be brought."""

    def __init__(
        self,
        store: ObjectStore,
        pinned: PinnedKey,
        stage: Stage,
        *,
        bring: Bring,
        part_cache: PartCache,
        base: "Callable[[str], Tensor] | None" = None,
        make_way: Callable[[tuple[Route, ...]], object] = lambda routes: None,
    ) -> None:
        self.stage = stage
        self._store = store
        self._pinned = pinned
        self._bring = bring
        self._part_cache = part_cache
        self._fetcher = Fetcher(bring, part_cache)
        self._base = base
        self._make_way = make_way

    def bring(self, published: Published) -> FetchedVersion:
        """Fetches and verifies what leads to `published`; the engine and what is staged stay as they are.

        Where nothing is staged it returns at once, with parts that are waited for when they are applied.
        """
        try:
            manifest = reader.read_manifest(self._store, published, self._pinned.verifier)
            routes = self._routes(manifest)
        except EchoQueueError:
            self._pinned.check()
            raise
        self._make_way(routes)
        if self.stage.have is None and routes and sum(route.size for route in routes) <= self._part_cache.most_bytes:
            return FetchedVersion(published, manifest, routes, dict(self._fetcher.start(routes)))
        parts: dict[str, Whole] = {}
        for route in routes:
            with self._part_cache.hold(route):
                self._bring(route)
                parts |= {
                    part.key: self._part_cache.open(part) for part in route.parts
                }  # these stay, whatever leaves it
        return FetchedVersion(published, manifest, routes, parts)

    def apply(self, arrived: FetchedVersion) -> None:
        """For who holds the stage. Once: the parts are let go, so that the part cache can give their room to others."""
        self._base = None  # the engine may be given something else from now on
        try:
            self.stage.apply(arrived.routes, arrived.manifest, arrived.parts, self._pinned.chunk_key)
        finally:
            arrived.parts.clear()

    def _routes(self, manifest: Manifest) -> tuple[Route, ...]:
        """The cheapest; an anchor that would bring what is here already, whatever that is called, is left out."""
        have = self.stage.have or self._adopted(manifest)
        if have is not None and have[1] == manifest.root:
            return ()
        routes = reader.ways(self._store, have, manifest, self._pinned.verifier)
        spared = have is not None and routes and routes[0].base is None and routes[0].root == have[1]
        return routes[1:] if spared else routes

    def _adopted(self, manifest: Manifest) -> tuple[Version, str] | None:
        """The base model, staged, if the learner published the same as the first version of its lineage."""
        if self._base is None:
            return None
        try:
            first = self._first(manifest)
        except MissingObject:
            first = None  # it was pruned, and nothing leads from there any more
        weight, self._base = self._base, None
        if first is None or not self.stage.wait_turn(lambda: True):
            return None
        try:
            if self.stage.adopt(first, weight) != first.root:
                self.stage.forget()
            return self.stage.have
        finally:
            self.stage.release()

    def _first(self, manifest: Manifest) -> Manifest:
        version = Version(manifest.version.lineage, 0)
        if version == manifest.version:
            return manifest
        envelope = self._store.get(manifest_key(version), reader.MANIFEST_MAX_BYTES)
        return reader.open_manifest(self._store, envelope, version, self._pinned.verifier)
