"""Fetches a published version: from the pointer to its parts on this machine, and from these to the stage.

- Only what is signed with the key that was pinned when this worker joined is ever read; another key ends the worker.
- Where something is staged, a whole path is here before the stage is touched; where nothing is, parts are decoded as
  they come, so that a worker that joins serves a moment after its last byte.
- The cheapest path from what is staged is fetched. The base model that this worker was started with counts as staged,
  if it is bit for bit the version 0 that the learner published. It is read only while that one is in the store.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from echo_queue.errors import EchoQueueError
from echo_queue.records import Published, Version
from echo_queue.storage.object_store import MissingObject, ObjectStore
from echo_queue.weights import reader
from echo_queue.weights.manifest import Manifest, Route, manifest_key
from workers.weights.key_pinning import PinnedKey
from workers.weights.staging import Stage
from workers.weights.transport import FetchedPart, WeightTransport

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, eq=False)
class FetchedVersion:
    """All that the stage needs to become a version; its parts, by their key, are here or on their way."""

    published: Published
    manifest: Manifest
    path: tuple[Route, ...]
    parts: dict[str, FetchedPart]


class VersionFetcher:
    """`base` gives the tensors of the base model, while the engine serves nothing else. `deadline_s`: for one route."""

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
        """Fetches and verifies what leads to `published`; the engine and what is staged stay as they are.

        Where nothing is staged it may return at once, with parts that are waited for when they are applied.
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
        """Stages the version; the caller holds the stage. Lets the parts go afterwards, so that their room is free."""
        self._base = None  # the engine may be given something else from now on
        try:
            self.stage.apply(fetched.path, fetched.manifest, fetched.parts, self._pinned.chunk_key)
        finally:
            fetched.parts.clear()

    def _path(self, manifest: Manifest) -> tuple[Route, ...]:
        """The cheapest path. An anchor of the very weights that are staged, whatever their version, is left out."""
        have = self.stage.have or self._adopted(manifest)
        if have is not None and have[1] == manifest.root:
            return ()
        path = reader.find_path(self._store, have, manifest, self._pinned.verifier)
        spared = have is not None and path and path[0].base is None and path[0].root == have[1]
        return path[1:] if spared else path

    def _adopted(self, manifest: Manifest) -> tuple[Version, str] | None:
        """Stages the base model, if the learner published the same as the first version of its lineage."""
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
