"""A checkpoint's manifest: its fields, its one encoding, and the name and folder of a checkpoint.

`decode` takes exactly what `CheckpointManifest.encode` wrote, and raises `ValueError` for anything else.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

from pydantic import Field

from echo_queue import documents
from echo_queue.records import BASE, Version
from learner.recovery.state_files import StateFile

PREFIX, MANIFEST = "checkpoints/", "manifest.json"
NO_SETS: Mapping[str, str] = {}
Count = Annotated[int, Field(ge=0)]


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

    lineage: Count
    version: Count
    parent: str | None
    window: float
    trained: tuple[str, ...]
    sets: Mapping[str, str]
    holder: str
    files: tuple[StateFile, ...]
    format: Literal[4] = 4

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
        return documents.encode(self)


def decode(data: bytes) -> CheckpointManifest:
    """Decodes a manifest. Raises `ValueError` for anything that `CheckpointManifest.encode` does not write."""
    return documents.decode(CheckpointManifest, data, "its manifest")


def name_of(version: Version) -> str:
    return f"{version.lineage:04d}/{version.number:08d}"


def folder_of(name: str) -> str:
    return f"{PREFIX}{name}/"
