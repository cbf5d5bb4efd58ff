"""From the pointer to a published version to its parts on this machine, and from these to the stage.

- Only what is signed with the key that was pinned when this worker joined is ever read; another key ends the worker.
- Where something is staged, all of a way is here before the stage is touched; where nothing is, parts are decoded as
  they come, so that a worker that joins serves a moment after its last byte.
- The cheapest way is taken from what is staged; the base model that this worker brought along counts as staged, if it
  is bit for bit the version 0 that the learner published. It is read only while that one is in the store.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING

from echo_queue.errors import EchoQueueError
from echo_queue.records import Published, Version
from echo_queue.store import MissingObject, ObjectStore
from echo_queue.weights import reading
from echo_queue.weights.manifest import Manifest, Route, manifest_key
from workers.weights.spool import PartFile, Spool
from workers.weights.staging import Stage, Whole
from workers.weights.trusting import Pinned

if TYPE_CHECKING:
    from torch import Tensor

Bring = Callable[[Route], object]
"""Afterwards every part of the route is whole in the spool, and verified."""
WAIT_S = 0.2


@dataclass(frozen=True, eq=False)
class Arrived:
    """All that the stage needs to become a version, here or on its way; parts by their key."""

    published: Published
    manifest: Manifest
    routes: tuple[Route, ...]
    parts: Mapping[str, Whole]


class Coming:
    """A part that is on its way."""

    def __init__(self, file: PartFile, fetching: "Future[None]") -> None:
        self._file, self._fetching = file, fetching

    def memory(self) -> memoryview:
        """Once it is whole. Raises what its fetching raised; that has a deadline."""
        while not self._file.whole and not self._fetching.done():
            self._file.wait(self._file.next, WAIT_S)
        if not self._file.whole:
            self._fetching.result(timeout=0)
        return self._file.memory()


class Intake:
    """`base` gives the tensors of the base model, while the engine serves nothing else."""

    def __init__(
        self,
        store: ObjectStore,
        pinned: Pinned,
        stage: Stage,
        *,
        bring: Bring,
        spool: Spool,
        base: "Callable[[str], Tensor] | None" = None,
    ) -> None:
        self.stage = stage
        self._store = store
        self._pinned = pinned
        self._bring = bring
        self._spool = spool
        self._base = base

    def bring(self, published: Published) -> Arrived:
        """Fetches and verifies what leads to `published`; the engine and what is staged stay as they are.

        Where nothing is staged it returns at once, with parts that are waited for when they are applied.
        """
        try:
            manifest = reading.read_manifest(self._store, published, self._pinned.verifier)
            routes = self._routes(manifest)
        except EchoQueueError:
            self._pinned.check()
            raise
        if self.stage.have is None and routes:
            return Arrived(published, manifest, routes, self._on_their_way(routes))
        parts: dict[str, Whole] = {}
        for route in routes:
            with self._spool.hold(route):
                self._bring(route)
                parts |= {part.key: self._spool.open(part) for part in route.parts}  # these stay, whatever leaves it
        return Arrived(published, manifest, routes, parts)

    def _on_their_way(self, routes: Sequence[Route]) -> Mapping[str, Whole]:
        """With nothing staged there is nothing to spoil: parts are decoded while those after them are fetched."""
        files = {part.key: self._spool.open(part) for route in routes for part in route.parts}
        fetching: Future[None] = Future()
        threading.Thread(target=self._fetch, args=(routes, fetching), name="intake", daemon=True).start()
        return {key: Coming(file, fetching) for key, file in files.items()}

    def _fetch(self, routes: Sequence[Route], fetching: "Future[None]") -> None:
        try:
            with self._spool.hold(*routes):
                for route in routes:
                    self._bring(route)
            fetching.set_result(None)
        except BaseException as error:
            fetching.set_exception(error)

    def apply(self, arrived: Arrived) -> None:
        """For who holds the stage."""
        self._base = None  # the engine may be given something else from now on
        self.stage.apply(arrived.routes, arrived.manifest, arrived.parts, self._pinned.chunk_key)

    def _routes(self, manifest: Manifest) -> tuple[Route, ...]:
        """The cheapest; an anchor that would bring what is here already, whatever that is called, is left out."""
        have = self.stage.have or self._adopted(manifest)
        if have is not None and have[1] == manifest.root:
            return ()
        routes = reading.ways(self._store, have, manifest, self._pinned.verifier)
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
        envelope = self._store.get(manifest_key(version), reading.MANIFEST_MAX_BYTES)
        return reading.open_manifest(self._store, envelope, version, self._pinned.verifier)
