"""From the pointer to a published version to its parts on this machine, and from these to the stage.

- Only what is signed with the key that was pinned when this worker joined is ever read; another key ends the worker.
- The cheapest way is taken from what is staged; the base model that this worker brought along counts as staged, if it
  is bit for bit what the learner published. It is read only when it would spare the fetch of an anchor.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from echo_queue.errors import EchoQueueError
from echo_queue.records import Published
from echo_queue.store import ObjectStore
from echo_queue.weights import reading
from echo_queue.weights.manifest import Manifest, Route
from workers.weights.spool import Spool
from workers.weights.staging import Stage, Whole
from workers.weights.trusting import Pinned

if TYPE_CHECKING:
    from torch import Tensor

Bring = Callable[[Route], object]
"""Afterwards every part of the route is whole in the spool, and verified."""


@dataclass(frozen=True, eq=False)
class Arrived:
    """All that the stage needs to become a version, on this machine; parts by their key."""

    published: Published
    manifest: Manifest
    routes: tuple[Route, ...]
    parts: Mapping[str, Whole]


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
        """Fetches and verifies what leads to `published`; the engine and what is staged stay as they are."""
        try:
            manifest = reading.read_manifest(self._store, published, self._pinned.verifier)
            routes = self._routes(manifest)
        except EchoQueueError:
            self._pinned.check()
            raise
        parts: dict[str, Whole] = {}
        for route in routes:
            with self._spool.hold(route):
                self._bring(route)
                parts |= {part.key: self._spool.open(part) for part in route.parts}  # these stay, whatever leaves it
        return Arrived(published, manifest, routes, parts)

    def apply(self, arrived: Arrived) -> None:
        """For who holds the stage."""
        self.stage.apply(arrived.routes, arrived.manifest, arrived.parts, self._pinned.chunk_key)
        self._base = None  # the engine may be given something else from now on

    def _routes(self, manifest: Manifest) -> tuple[Route, ...]:
        """The cheapest; an anchor that would bring what is here already, whatever that is called, is left out."""
        have = self.stage.have
        if have is not None and have[1] == manifest.root:
            return ()
        routes = reading.ways(self._store, have, manifest, self._pinned.verifier)
        anchor = routes[0] if routes and routes[0].base is None else None
        if anchor is None:
            return routes
        if have is not None:
            return routes[1:] if have[1] == anchor.root else routes
        if self._base is None or anchor.version.number:
            return routes
        return routes[1:] if self._adopts_base(manifest, self._base, anchor) else routes

    def _adopts_base(self, manifest: Manifest, weight: "Callable[[str], Tensor]", anchor: Route) -> bool:
        """Whether the base model is what `anchor` would bring; then it is staged."""
        if not self.stage.hold():
            return False
        try:
            same = self.stage.adopt(manifest, anchor.version, weight) == anchor.root
            if not same:
                self.stage.forget()
            return same
        finally:
            self.stage.release()
