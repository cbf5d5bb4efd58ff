"""What a published version consists of: its objects, the digests of their chunks, and where each tensor lies.

- JSON whose BLAKE3 digest travels with the pointer and so fixes every byte of the version.
- Chunks are byte ranges of objects: what is checked, fetched in parallel and, later, passed on between peers.
- An object is named by its content; whoever writes the same version cannot touch what another has written.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import orjson
from blake3 import blake3

from echo_queue.errors import Problem, ServiceError
from echo_queue.records import Version

FOLDER = "weights/"
NAME = "manifest.json"
FORMAT = 1


@dataclass(frozen=True)
class Object:
    """A safetensors file in the store, and its size in bytes."""

    key: str
    size: int


@dataclass(frozen=True)
class Chunk:
    """Bytes `start … start + length − 1` of `objects[object]`; `blake3` in hex."""

    object: int
    start: int
    length: int
    blake3: str


@dataclass(frozen=True)
class TensorPlace:
    """A tensor's bytes begin at `start` of `objects[object]`; `dtype` as safetensors names it."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    object: int
    start: int


@dataclass(frozen=True)
class Manifest:
    """`aliases`: names that share another tensor's storage (tied weights), which is stored once."""

    lineage: int
    number: int
    objects: tuple[Object, ...]
    chunks: tuple[Chunk, ...]
    tensors: tuple[TensorPlace, ...]
    aliases: Mapping[str, str]
    kind: Literal["full"] = "full"
    format: int = FORMAT

    @property
    def version(self) -> Version:
        return Version(self.lineage, self.number)

    def encode(self) -> bytes:
        return orjson.dumps(self, option=orjson.OPT_SORT_KEYS)

    @classmethod
    def decode(cls, data: bytes, where: str) -> "Manifest":
        """Raises `ServiceError` for anything that is not a whole manifest of a format known here."""
        try:
            values: dict[str, Any] = orjson.loads(data)
            if (values["format"], values["kind"]) != (FORMAT, "full"):
                mend = "upgrade this installation"
                raise ServiceError(Problem(where, f"format {values['format']}, kind {values['kind']} is unknown", mend))
            return cls(
                lineage=values["lineage"],
                number=values["number"],
                objects=tuple(Object(**entry) for entry in values["objects"]),
                chunks=tuple(Chunk(**entry) for entry in values["chunks"]),
                tensors=tuple(TensorPlace(**{**entry, "shape": tuple(entry["shape"])}) for entry in values["tensors"]),
                aliases=values["aliases"],
            )
        except (orjson.JSONDecodeError, KeyError, TypeError, ValueError) as error:
            raise ServiceError(Problem(where, f"is no manifest: {error}", "publish the version again")) from None


def folder(version: Version) -> str:
    return f"{FOLDER}{version.lineage:04d}/{version.number:08d}/"


def manifest_key(version: Version) -> str:
    return folder(version) + NAME


def version_of(key: str) -> Version | None:
    """The version that an object of the store belongs to, by its key."""
    match key.removeprefix(FOLDER).split("/"):
        case [lineage, number, _] if lineage.isdigit() and number.isdigit():
            return Version(int(lineage), int(number))
    return None


def digest(data: bytes | memoryview) -> str:
    return blake3(data).hexdigest()
