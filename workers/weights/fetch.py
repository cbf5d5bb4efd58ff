"""Fetches a published version: follows the pointer to its parts, brings them to this machine, and then to the stage.

- Only documents signed with the key that was pinned when this worker joined are ever read; another key ends the worker.
- If weights are staged, the whole path is fetched before the stage is touched. If none are, parts are decoded as they
  arrive, so that a worker that joins serves a moment after its last byte.
- The cheapest path from the staged weights is fetched. The base model that this worker was started with counts as
  staged if it equals, bit for bit, the version 0 that the learner published. It is compared only while that version is
  in the store.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from echo_queue.connections.storage.object_store import MissingObject, ObjectStore
from echo_queue.errors import EchoQueueError
from echo_queue.records import Published, Version
from echo_queue.weights import reader
from echo_queue.weights.manifest import DOCUMENT_MAX_BYTES, Manifest, Route, manifest_key
from workers.weights.key_pinning import PinnedKey
from workers.weights.staging import Stage
from workers.weights.transport import FetchedPart, WeightTransport

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, eq=False)
class FetchedVersion:
    """Everything that the stage needs to become a version. `parts`, by key, are on this machine or on their way."""

    published: Published
    manifest: Manifest
    path: tuple[Route, ...]
    parts: dict[str, FetchedPart]


class VersionFetcher:
    """Fetches and stages versions, in the weight watcher's thread. `deadline_s`: the longest that one route may take.

    `base` returns the base model's tensors by name; it is used only while the engine serves nothing else.
    """

    def __init__(
        self,
        store: ObjectStore,
        pinned: PinnedKey,
        stage: Stage,
        transport: WeightTransport,
        deadline_s: float,
        *,
        base: "Callable[[str], Tensor] | None" = None,
    ) -> None:
        self.stage = stage
        self._store = store
        self._pinned = pinned
        self._transport = transport
        self._deadline_s = deadline_s
        self._base = base

    def fetch(self, published: Published) -> FetchedVersion:
        """Fetches and verifies the parts that lead to `published`, and changes neither the engine nor the stage.

        If nothing is staged, it may return at once, with parts that are waited for when they are applied.
        """
        try:
            manifest = reader.read_manifest(self._store, published, self._pinned.verifier)
            path = self._path(manifest)
        except EchoQueueError:
            self._pinned.check()
            raise
        parts = self._transport.fetch(path, self._deadline_s, early=self.stage.have is None)
        return FetchedVersion(published, manifest, path, dict(parts))

    def apply(self, fetched: FetchedVersion) -> None:
        """Stages the version, then releases its parts, so that their room is free. The caller holds the stage."""
        self._base = None  # from now on the engine may serve other weights than the base model
        try:
            self.stage.apply(fetched.path, fetched.manifest, fetched.parts, self._pinned.chunk_key)
        finally:
            fetched.parts.clear()

    def _path(self, manifest: Manifest) -> tuple[Route, ...]:
        """Returns the cheapest path, without an anchor of the very weights that are staged under any version."""
        have = self.stage.have or self._adopted(manifest)
        if have is not None and have[1] == manifest.root:
            return ()
        path = reader.find_path(self._store, have, manifest, self._pinned.verifier)
        spared = have is not None and path and path[0].base is None and path[0].root == have[1]
        return path[1:] if spared else path

    def _adopted(self, manifest: Manifest) -> tuple[Version, str] | None:
        """Stages the base model if the learner published the same weights as the first version of its lineage.

        Returns what is staged then, as `Stage.have`; None if the base model is not that version.
        """
        if self._base is None:
            return None
        try:
            first = self._first(manifest)
        except MissingObject:
            first = None  # it was pruned, so that no route begins at it any more
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
        envelope = self._store.get(manifest_key(version), DOCUMENT_MAX_BYTES)
        return reader.open_manifest(self._store, envelope, version, self._pinned.verifier)
