"""Checkpoints in the object store: the last authority on what has been trained.

- A checkpoint exists once its manifest does; the manifest is put once, last, and lists the files that hold the state,
  with their digests, and which rows of which tensor each file holds. A torn or damaged checkpoint is passed over with a
  warning, and the one before it counts.
- The newest checkpoint is found by listing: the highest lineage first, then the highest version.
- Each manifest holds the task ids trained since its parent; a lineage's first manifest holds none and marks where the
  lineage began. Pruning removes tensors and keeps manifests, so that `trained_ids` can prove from storage alone that
  nothing was trained twice.
"""

import logging
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import orjson
from torch import Tensor

from echo_queue.errors import FencedError, Problem, ServiceError
from echo_queue.records import Version
from echo_queue.storage.object_store import MissingObject, ObjectStore
from learner.recovery import state_reader
from learner.recovery.state_files import DTYPES, FILE_BYTES, SUFFIX, StateFile, StoredRows, rows_of, whole, write_files

log = logging.getLogger(__name__)

PREFIX, MANIFEST = "checkpoints/", "manifest.json"
FORMAT = 3
DIGEST = re.compile("[0-9a-f]{64}")
NOTHING: Mapping[str, Tensor] = {}


@dataclass(frozen=True)
class CheckpointManifest:
    """A checkpoint. `trained`: the task ids of the updates since `parent`, in order. `window`: w, in batches.

    `holder`: the checkpoint that the files were written for: this one, or the ancestor that this one marks.
    """

    lineage: int
    version: int
    parent: str | None
    window: float
    trained: tuple[str, ...]
    holder: str
    files: tuple[StateFile, ...]
    format: int = FORMAT

    @property
    def name(self) -> str:
        return name_of(Version(self.lineage, self.version))

    @property
    def folder(self) -> str:
        """The prefix under which the files lie."""
        return folder_of(self.holder)

    @property
    def keys(self) -> tuple[str, ...]:
        """The files' keys."""
        return tuple(self.folder + file.name for file in self.files)


def save(
    store: ObjectStore,
    version: Version,
    tensors: Mapping[str, Tensor],
    *,
    trained: tuple[str, ...],
    parent: CheckpointManifest | None,
    window: float,
    file_bytes: int = FILE_BYTES,
) -> CheckpointManifest:
    """Makes a checkpoint durable, in files of at most `file_bytes`.

    Raises `FencedError` if another learner made a checkpoint of this name.
    """
    files = write_files(store, folder_of(name_of(version)), whole(tensors), file_bytes)
    return complete(store, version, files, trained=trained, parent=parent, window=window)


def complete(
    store: ObjectStore,
    version: Version,
    files: tuple[StateFile, ...],
    *,
    trained: tuple[str, ...],
    parent: CheckpointManifest | None,
    window: float,
) -> CheckpointManifest:
    """Makes a checkpoint of the files that all processes have written. Raises `FencedError` as `save` does."""
    above = parent.name if parent else None
    manifest = CheckpointManifest(*version, above, window, trained, name_of(version), files)
    _put_manifest(store, manifest)
    return manifest


def newest(
    store: ObjectStore, into: Mapping[str, Tensor] = NOTHING
) -> tuple[CheckpointManifest, dict[str, Tensor]] | None:
    """Returns the newest checkpoint that is whole, with its tensors; None if there never was a checkpoint.

    Tensors are read straight into those of `into`, which are returned, where name, shape and type are the same, and
    into new ones on the CPU otherwise. Raises `ServiceError` if there are checkpoints and none is whole: only a person
    may decide to begin again.
    """
    damaged: list[str] = []
    for manifest in _manifests(store):
        try:
            tensors = state_reader.read_whole(store, manifest.folder, manifest.files, into)
        except (MissingObject, ValueError) as error:
            log.warning("checkpoint %s cannot be used (%s); trying the one before it", manifest.name, error)
            damaged.append(manifest.name)
            continue
        if damaged:
            log.warning("these weights lack what %s trained after %s", ", ".join(damaged), manifest.name)
        return manifest, tensors
    if damaged:
        fix = "restore the bucket; or remove its checkpoints/ and give the run another name, to begin again"
        raise ServiceError(Problem(PREFIX, f"no checkpoint is whole: {', '.join(damaged)}", fix))
    return None


def trained_ids(store: ObjectStore) -> list[str]:
    """Returns the ids that the surviving history trained, in order from its beginning; reads manifests only."""
    return [task for manifest in reversed(list(history(store))) for task in manifest.trained]


def history(store: ObjectStore) -> Iterator[CheckpointManifest]:
    """Yields the surviving history, newest first; reads manifests only."""
    last = next(_manifests(store), None)
    if last is not None:
        yield from chain(store, last)


def chain(store: ObjectStore, manifest: CheckpointManifest) -> Iterator[CheckpointManifest]:
    """Yields `manifest` and its ancestors, newest first."""
    yield manifest
    while manifest.parent is not None:
        manifest = read(store, manifest.parent)
        yield manifest


def lineages(store: ObjectStore) -> set[int]:
    """Returns the lineages that left anything under `checkpoints/`, whole or not."""
    return {int(first) for key in _keys(store) if (first := _name(key).partition("/")[0]).isdecimal()}


def mark(store: ObjectStore, lineage: int, begin: CheckpointManifest) -> CheckpointManifest:
    """Saves the first checkpoint of `lineage`, which names the state of `begin`: the newest one from now on."""
    manifest = replace(begin, lineage=lineage, parent=begin.name, trained=())
    _put_manifest(store, manifest)
    return manifest


def prune(store: ObjectStore, newest_manifest: CheckpointManifest, keep: int) -> None:
    """Removes all tensors but the newest `keep` of this history; those of abandoned histories as well."""
    kept: set[str] = set()
    for manifest in chain(store, newest_manifest):
        kept.add(manifest.holder)
        if len(kept) == keep:
            break
    gone = sorted(key for key in unpruned(store) if _name(key) not in kept and _name(key) < newest_manifest.name)
    if gone:
        store.delete(gone)


def unpruned(store: ObjectStore) -> set[str]:
    """Returns the keys of all files that hold tensors."""
    return {key for key in _keys(store) if key.endswith(SUFFIX)}


def verify(store: ObjectStore, manifest: CheckpointManifest) -> None:
    """Reads the checkpoint's files. Raises `MissingObject`, or `ValueError` if one is damaged."""
    state_reader.verify_files(store, manifest.folder, manifest.files)


def _put_manifest(store: ObjectStore, manifest: CheckpointManifest) -> None:
    if not store.put(_key(manifest.name, MANIFEST), orjson.dumps(asdict(manifest)), once=True):
        raise FencedError(Problem(manifest.name, "another learner made this checkpoint", "let only one learner run"))


def _manifests(store: ObjectStore) -> Iterator[CheckpointManifest]:
    """Yields manifests, newest first. A torn manifest was never acknowledged, so it is no checkpoint."""
    for name in sorted((_name(key) for key in _keys(store) if key.endswith(MANIFEST)), reverse=True):
        try:
            yield read(store, name)
        except ValueError as error:
            log.warning("checkpoint %s was never finished (%s)", name, error)


def _keys(store: ObjectStore) -> list[str]:
    return [stored.key for stored in store.list(PREFIX)]


def read(store: ObjectStore, name: str) -> CheckpointManifest:
    """Returns the manifest of that name. Raises `MissingObject`, or `ValueError` if the manifest is torn."""
    manifest = decode(store.get(_key(name, MANIFEST)))
    if manifest.name != name:
        raise ValueError(f"its manifest names {manifest.name}")
    return manifest


def decode(data: bytes) -> CheckpointManifest:
    """Decodes exactly what `save` wrote; raises `ValueError` for anything else."""
    match orjson.loads(data):
        case {
            "lineage": int(lineage),
            "version": int(version),
            "parent": str() | None as parent,
            "window": float() | int() as window,
            "trained": [*trained],
            "holder": str(holder),
            "files": [*listed],
            "format": int(form),
        } if form == FORMAT and min(lineage, version) >= 0 and all(isinstance(task, str) for task in trained):
            files = tuple(map(_file, listed))
            manifest = CheckpointManifest(lineage, version, parent, window, tuple(trained), holder, files)
        case _:
            raise ValueError("its manifest is malformed, or of another format")
    if orjson.dumps(asdict(manifest)) != data:
        raise ValueError("its manifest is not encoded as `save` encodes it")
    return manifest


def _file(listed: Any) -> StateFile:
    match listed:
        case {"digest": str(digest), "size": int(size), "rows": [*rows]} if DIGEST.fullmatch(digest):
            file = StateFile(digest, size, tuple(map(_rows, rows)))
            if all(stored.begin + stored.size <= size for stored in file.rows):
                return file
    raise ValueError("its manifest lists a file that cannot be")


def _rows(listed: Any) -> StoredRows:
    match listed:
        case {
            "name": str(name),
            "dtype": str(dtype),
            "shape": [*shape],
            "first": int(first),
            "rows": int(rows),
            "begin": int(begin),
        } if dtype in DTYPES and all(isinstance(size, int) for size in shape):
            found = StoredRows(name, dtype, tuple(shape), first, rows, begin)
            lie_within = min((first, rows, begin, *shape)) >= 0 and first + rows <= rows_of(found.shape)
            if lie_within and begin % DTYPES[dtype].itemsize == 0:
                return found
    raise ValueError("its manifest lists rows that cannot be")


def name_of(version: Version) -> str:
    return f"{version.lineage:04d}/{version.number:08d}"


def folder_of(name: str) -> str:
    return f"{PREFIX}{name}/"


def _key(name: str, file: str) -> str:
    return folder_of(name) + file


def _name(key: str) -> str:
    return key.removeprefix(PREFIX).rpartition("/")[0]
