"""What a published version consists of: its objects, the digests of their chunks, and where each tensor lies.

- JSON whose BLAKE3 digest travels with the pointer and so fixes every byte of the version.
- Chunks are byte ranges of objects: what is checked, fetched in parallel and, later, passed on between peers.
- An object is named by its content; whoever writes the same version cannot touch what another has written.
- `decode` takes exactly what `encode` makes, and only what fits together: chunks that fill each object once, tensors
  that lie inside one.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NoReturn

import orjson
from blake3 import blake3

from echo_queue.errors import Problem, ServiceError
from echo_queue.records import Version

FOLDER = "weights/"
NAME = "manifest.json"
FORMAT = 1
NUMBER_MAX = 1 << 53
DIMENSIONS_MAX = 16
ITEM_BYTES = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1,
}  # fmt: skip
"""By the names that safetensors gives to types."""


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
            values = orjson.loads(data)
            known = _named(values, "format", "kind")
            if (known["format"], known["kind"]) != (FORMAT, "full"):
                mend = "upgrade this installation"
                raise ServiceError(Problem(where, f"format {known['format']}, kind {known['kind']} is unknown", mend))
            manifest = cls(
                lineage=_count(values["lineage"]),
                number=_count(values["number"]),
                objects=tuple(Object(_text(one["key"]), _count(one["size"])) for one in values["objects"]),
                chunks=tuple(_chunk(one) for one in values["chunks"]),
                tensors=tuple(_tensor(one) for one in values["tensors"]),
                aliases={_text(name): _text(owner) for name, owner in values["aliases"].items()},
            )
            _check(manifest)
            if manifest.encode() != data:
                _refuse("it is not spelled as we spell it")
        except (LookupError, TypeError, AttributeError, ValueError) as error:  # orjson's are ValueErrors
            raise ServiceError(Problem(where, f"is no manifest: {error}", "publish the version again")) from None
        return manifest


def _check(manifest: Manifest) -> None:
    """Raises `ValueError` unless the parts fit together."""
    filled = [0] * len(manifest.objects)
    for chunk in manifest.chunks:
        if chunk.start != filled[chunk.object] or not chunk.length:
            _refuse(f"a chunk begins at {chunk.start} of object {chunk.object}, the one before ends elsewhere")
        filled[chunk.object] += chunk.length
    if filled != [stored.size for stored in manifest.objects]:
        _refuse("its chunks do not fill its objects")
    for place in manifest.tensors:
        if place.start + ITEM_BYTES[place.dtype] * math.prod(place.shape) > manifest.objects[place.object].size:
            _refuse(f"tensor {place.name} does not lie inside its object")
    names = {place.name for place in manifest.tensors}
    if len(names) != len(manifest.tensors) or not names.issuperset(manifest.aliases.values()):
        _refuse("a tensor's name stands twice, or an alias names none")


def _chunk(values: Any) -> Chunk:
    index, start, length = (_count(values[name]) for name in ("object", "start", "length"))
    return Chunk(index, start, length, _text(values["blake3"]))


def _tensor(values: Any) -> TensorPlace:
    shape = values["shape"]
    if not isinstance(shape, list) or len(shape) > DIMENSIONS_MAX:
        _refuse(f"a tensor's shape is {shape!r:.100}")
    sizes = tuple(map(_count, shape))
    return TensorPlace(
        _text(values["name"]), _text(values["dtype"]), sizes, _count(values["object"]), _count(values["start"])
    )


def _named(values: Any, *names: str) -> dict[str, Any]:
    if not isinstance(values, dict):
        _refuse("it is no JSON object")
    return {name: values[name] for name in names}


def _count(value: object) -> int:
    if type(value) is not int or not 0 <= value < NUMBER_MAX:
        _refuse(f"{value!r:.100} is no count")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        _refuse(f"{value!r:.100} is no text")
    return value


def _refuse(rule: str) -> NoReturn:
    raise ValueError(rule)


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
