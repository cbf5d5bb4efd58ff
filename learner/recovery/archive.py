"""Archives of older manifests, so that neither the objects of a run nor its resume grow by one with each checkpoint.

- An archive is one object, `checkpoints/{lineage}/{version}/{BLAKE3 of its bytes}.archive`, under the name of the
  newest checkpoint in it. It has a manifest per line, in order, without its list of files: their tensors are gone.
- Manifests are removed only once the archive that holds them is stored. A crash in between leaves both, and they agree:
  the next archive of the same manifests is the same object.
- `ManifestReader` finds a manifest wherever it lies, and reads each archive once.
"""

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from blake3 import blake3

from echo_queue.connections.storage.object_store import MissingObject, ObjectStore
from learner.recovery.manifest import MANIFEST, PREFIX, CheckpointManifest, decode, folder_of

log = logging.getLogger(__name__)

SUFFIX = ".archive"
MANIFESTS = 64
"""The number of manifests in an archive."""


class ManifestReader:
    """Reads manifests by name. What it has read from an archive it keeps, so one walk over a history asks little."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._archived: dict[str, CheckpointManifest] = {}
        self._known: set[str] = set()
        """Keys of the archives that were read."""

    def read(self, name: str) -> CheckpointManifest:
        """Returns the manifest of that name, without its files if it is archived.

        Raises `MissingObject`, or `ValueError` for a manifest or an archive that is torn.
        """
        if name in self._archived:
            return self._archived[name]
        try:
            return read(self._store, name)
        except MissingObject:
            self._search(name)
            if name not in self._archived:
                raise
        return self._archived[name]

    def _search(self, name: str) -> None:
        """Reads archives until one has `name`. Only those that end with it, or later, can."""
        for key in keys(self._store):
            if not key.endswith(SUFFIX) or key in self._known or checkpoint_of(key) < name:
                continue
            self._known.add(key)
            self._archived |= {manifest.name: manifest for manifest in _read_archive(self._store, key)}
            if name in self._archived:
                return


def read(store: ObjectStore, name: str) -> CheckpointManifest:
    """Returns the manifest that has an object of its own. Raises `MissingObject`, or `ValueError` if it is torn."""
    manifest = decode(store.get(folder_of(name) + MANIFEST))
    if manifest.name != name:
        raise ValueError(f"its manifest names {manifest.name}")
    return manifest


def archive(store: ObjectStore, names: Sequence[str]) -> None:
    """Moves the manifests `names`, in ascending order, into archives; those that fill none stay for the next time.

    The tensors of these checkpoints must be gone already.
    """
    for start in range(0, len(names) - MANIFESTS + 1, MANIFESTS):
        manifests = list(_standing(store, names[start : start + MANIFESTS]))
        if manifests:
            data = b"\n".join(replace(manifest, files=()).encode() for manifest in manifests)
            store.put(f"{folder_of(manifests[-1].name)}{blake3(data).hexdigest()}{SUFFIX}", data)
            store.delete([folder_of(manifest.name) + MANIFEST for manifest in manifests])


def stored_names(store: ObjectStore) -> set[str]:
    """Returns the names of all checkpoints whose manifests are in the store, archived or not."""
    listed = keys(store)
    archived = (manifest.name for key in listed if key.endswith(SUFFIX) for manifest in _read_archive(store, key))
    return {*standing(listed), *archived}


def standing(listed: Iterable[str]) -> list[str]:
    """Returns the names of those checkpoints among the listed keys that have a manifest of their own."""
    return [checkpoint_of(key) for key in listed if key.endswith(MANIFEST)]


def keys(store: ObjectStore) -> list[str]:
    """Returns all keys under `checkpoints/`, in order."""
    return [stored.key for stored in store.list(PREFIX)]


def checkpoint_of(key: str) -> str:
    """Returns the name of the checkpoint under which a key lies."""
    return key.removeprefix(PREFIX).rpartition("/")[0]


def _standing(store: ObjectStore, names: Iterable[str]) -> Iterator[CheckpointManifest]:
    """Yields these manifests but those that were never finished, or that another learner has archived meanwhile."""
    for name in names:
        try:
            yield read(store, name)
        except (MissingObject, ValueError) as error:
            log.info("checkpoint %s is not archived: %s", name, error)


def _read_archive(store: ObjectStore, key: str) -> Iterator[CheckpointManifest]:
    """Yields the manifests of an archive. Raises `ValueError` if its bytes are not those that its name says."""
    data = store.get(key)
    if blake3(data).hexdigest() != key.rpartition("/")[2].removesuffix(SUFFIX):
        raise ValueError(f"archive {key} is damaged: restore that object in the store")
    return map(decode, data.split(b"\n"))
