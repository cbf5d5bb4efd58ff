"""A checkpoint's manifest: its fields, its one encoding, and the name and folder of a checkpoint.

`decode` takes exactly what `CheckpointManifest.encode` wrote, and raises `ValueError` for anything else.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import orjson

from echo_queue.records import BASE, Version
from learner.model.pieces import rows_of
from learner.recovery.state_files import DTYPES, StateFile, StoredRows

PREFIX, MANIFEST = "checkpoints/", "manifest.json"
FORMAT = 4
DIGEST = re.compile("[0-9a-f]{64}")
NO_SETS: Mapping[str, str] = {}


class History(NamedTuple):
    """The way to a checkpoint, as its manifest says it: those fields of `CheckpointManifest`."""

    trained: tuple[str, ...] = ()
    parent: str | None = None
    window: float = 0.0
    sets: Mapping[str, str] = NO_SETS


@dataclass(frozen=True)
class CheckpointManifest:
    """A checkpoint. `trained`: the task ids of the updates since `parent`, in order. `window`: w, in batches.

    `sets`: for each set of which this checkpoint or an ancestor holds ids, the digest of its prompts; behind it, after
    spaces, those of earlier declarations in which chunks could not be read. `holder`: the checkpoint that the files
    were written for: this one, or the ancestor that this one marks. A lineage that begins at the base model marks that
    with no files.
    """

    lineage: int
    version: int
    parent: str | None
    window: float
    trained: tuple[str, ...]
    sets: Mapping[str, str]
    holder: str
    files: tuple[StateFile, ...]
    format: int = FORMAT

    @property
    def name(self) -> str:
        return name_of(Version(self.lineage, self.version))

    @property
    def at_base(self) -> bool:
        """True if it only marks that a lineage began at the base model, which needs no files."""
        return self.version == BASE.number

    @property
    def folder(self) -> str:
        """The prefix under which the files lie."""
        return folder_of(self.holder)

    @property
    def keys(self) -> tuple[str, ...]:
        """The files' keys."""
        return tuple(self.folder + file.name for file in self.files)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of each tensor that the files hold, by name."""
        return {rows.name: rows.shape for file in self.files for rows in file.rows}

    def encode(self) -> bytes:
        return orjson.dumps(self)


def decode(data: bytes) -> CheckpointManifest:
    """Decodes a manifest. Raises `ValueError` for anything that `CheckpointManifest.encode` does not write."""
    match orjson.loads(data):
        case {
            "lineage": int(lineage),
            "version": int(version),
            "parent": str() | None as parent,
            "window": float() | int() as window,
            "trained": [*trained],
            "sets": {**sets},
            "holder": str(holder),
            "files": [*listed],
            "format": int(form),
        } if form == FORMAT and min(lineage, version) >= 0 and _are_texts(trained) and _are_texts(sets.values()):
            digests = {str(name): str(digest) for name, digest in sets.items()}
            files = files_of(listed)
            manifest = CheckpointManifest(lineage, version, parent, window, tuple(trained), digests, holder, files)
        case _:
            raise ValueError("its manifest is malformed, or of another format")
    if manifest.encode() != data:
        raise ValueError("its manifest is not encoded as the learner encodes it")
    return manifest


def files_of(listed: Sequence[Any]) -> tuple[StateFile, ...]:
    """Returns the files of a decoded list of them. Raises `ValueError` if one of them cannot be."""
    return tuple(map(_file, listed))


def _are_texts(values: Iterable[Any]) -> bool:
    return all(isinstance(value, str) for value in values)


def _file(listed: Any) -> StateFile:
    match listed:
        case {"digest": str(digest), "size": int(size), "rows": [*rows]} if DIGEST.fullmatch(digest):
            file = StateFile(digest, size, tuple(map(_rows, rows)))
            if all(stored.begin + stored.size <= size for stored in file.rows):
                return file
    raise ValueError("it lists a file that cannot be")


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
    raise ValueError("it lists rows that cannot be")


def name_of(version: Version) -> str:
    return f"{version.lineage:04d}/{version.number:08d}"


def folder_of(name: str) -> str:
    return f"{PREFIX}{name}/"
