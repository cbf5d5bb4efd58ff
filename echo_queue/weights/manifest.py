"""Describes a published version: its tensors' digests, and the routes that lead to it.

- A *route* makes a version from an earlier one, or from nothing; its *parts* are objects of the store, each a shard
  that can be applied by itself. A part's *chunks* are the units that are verified and passed on between workers.
- A part's name follows from its chunks' digests and is never read from a document: a manifest cannot refer to anything
  outside its version's folder.
- `decode` accepts exactly the bytes that `encode` makes, and only values that are consistent. Its callers have verified
  the signature.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn, TypeVar

import orjson
from blake3 import blake3

from echo_queue.errors import Problem, ServiceError
from echo_queue.records import Version

FOLDER = "weights/"
NAME = "manifest.json"
ROUTE = "route.json"
PART = ".part"
FORMAT = 2
PIECE_BYTES = 4 << 20
"""The bytes of a tensor in one piece; a tensor's digest is made of its pieces' digests."""
NUMBER_MAX = 1 << 53
DIMENSIONS_MAX = 16
DOCUMENT_MAX_BYTES = 256 << 20
PARTS_MAX = 1 << 17
"""The largest number of parts of a route."""
PART_MAX_BYTES = 5 << 30
"""The largest object that every S3 store takes in one put."""
CHUNK_MAX_BYTES = 256 << 20
"""The largest chunk, which a reader holds in memory."""
TAG_BYTES = 16
"""The bytes that encryption adds to a chunk."""
DIGEST = re.compile(r"[0-9a-f]{64}")
SALT = re.compile(r"([0-9a-f]{32})?")
ITEM_BYTES = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1,
    "BOOL": 1,
}  # fmt: skip
"""The bytes of one element, by the name that safetensors gives to its type."""
T = TypeVar("T", "Manifest", "Route", "Announcement")
PLACE = re.compile(rf"{FOLDER}(\d{{4,}})/(\d{{8,}})/(?:(full|from-\d{{4,}}\.\d{{8,}})/)?([^/]+)")


class Damaged(ServiceError):
    """The stored bytes are not those that were published."""


@dataclass(frozen=True)
class Part:
    """An object of the store, `size` bytes long, in chunks of `chunk_bytes` (the last may be shorter).

    Size and digests are those of the stored bytes, which are ciphertext if there is a `salt`.
    """

    key: str
    size: int
    chunk_bytes: int
    chunks: tuple[str, ...]
    salt: str = ""

    def start(self, index: int) -> int:
        """The offset in bytes at which chunk `index` begins."""
        return index * self.chunk_bytes

    def length(self, index: int) -> int:
        """The length of chunk `index` in bytes."""
        return min(self.chunk_bytes, self.size - self.start(index))

    def body(self) -> dict[str, Any]:
        return {"size": self.size, "chunk_bytes": self.chunk_bytes, "chunks": self.chunks, "salt": self.salt}


@dataclass(frozen=True)
class Route:
    """The parts that make `version`, whose root digest is `root`, from `base` (None: from nothing)."""

    run: str
    version: Version
    base: Version | None
    root: str
    base_root: str | None
    parts: tuple[Part, ...]

    @property
    def size(self) -> int:
        """The bytes stored for the route."""
        return sum(part.size for part in self.parts)

    @property
    def name(self) -> str:
        return route_name(self.version, self.base)

    def body(self) -> dict[str, Any]:
        return {"base": _base_body(self.base, self.base_root), "parts": [part.body() for part in self.parts]}

    def encode(self) -> bytes:
        """Encodes the route as a document of its own, still to be signed."""
        return canonical(_head("route", self.run, self.version) | {"root": self.root, "route": self.body()})

    @classmethod
    def decode(cls, body: bytes, where: str) -> "Route":
        """Decodes a document. Raises `Damaged` if it is not a whole route, `ServiceError` for an unknown format."""
        return _decode(body, where, "route", _route_of)


@dataclass(frozen=True)
class Announcement:
    """A part that is stored before its version is published: number `place`, from 0 on, of a route that still grows."""

    run: str
    version: Version
    base: Version | None
    base_root: str | None
    place: int
    part: Part

    @property
    def route(self) -> str:
        return route_name(self.version, self.base)

    def encode(self) -> bytes:
        """Encodes the announcement as a document, still to be signed."""
        base = _base_body(self.base, self.base_root)
        more = {"base": base, "place": self.place, "part": self.part.body()}
        return canonical(_head("part", self.run, self.version) | more)

    @classmethod
    def decode(cls, body: bytes, where: str) -> "Announcement":
        """Decodes a document. Raises `Damaged` if it is no whole announcement, `ServiceError` for an unknown format."""
        return _decode(body, where, "part", _announcement_of)


@dataclass(frozen=True)
class TensorInfo:
    """A tensor's description. `dtype`: as safetensors names it. `digest`: as `tensor_digest` makes it."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    digest: str

    def body(self) -> dict[str, Any]:
        return {"name": self.name, "dtype": self.dtype, "shape": self.shape, "digest": self.digest}


@dataclass(frozen=True)
class Manifest:
    """A version's manifest.

    `aliases`: names that share another tensor's storage (tied weights). `route`: the route published with the manifest.
    """

    run: str
    version: Version
    tensors: tuple[TensorInfo, ...]
    aliases: Mapping[str, str]
    root: str
    route: Route
    piece_bytes: int = field(default=PIECE_BYTES)

    @property
    def size(self) -> int:
        """The bytes of all its tensors."""
        return sum(ITEM_BYTES[tensor.dtype] * math.prod(tensor.shape) for tensor in self.tensors)

    def body(self) -> dict[str, Any]:
        return _head("manifest", self.run, self.version) | {
            "tensors": [tensor.body() for tensor in self.tensors],
            "aliases": dict(self.aliases),
            "root": self.root,
            "route": self.route.body(),
            "piece_bytes": self.piece_bytes,
        }

    def encode(self) -> bytes:
        """Encodes the manifest as a document, still to be signed."""
        return canonical(self.body())

    @classmethod
    def decode(cls, body: bytes, where: str) -> "Manifest":
        """Decodes a document. Raises `Damaged` if it is not a whole manifest, `ServiceError` for an unknown format."""
        return _decode(body, where, "manifest", _manifest_of)


# Digests --------------------------------------------------------------------------------------------------------------


def canonical(values: object) -> bytes:
    """Returns the only accepted JSON spelling of `values`."""
    return orjson.dumps(values, option=orjson.OPT_SORT_KEYS)


def digest(data: bytes | memoryview) -> str:
    return blake3(data).hexdigest()


def tensor_digest(pieces: Iterable[str]) -> str:
    """Returns the BLAKE3 digest over the digests of a tensor's pieces, in order."""
    return _over(pieces)


def root_digest(tensors: Sequence[TensorInfo], aliases: Mapping[str, str]) -> str:
    """Returns the digest that identifies all of a version's weights."""
    return digest(canonical([[tensor.body() for tensor in tensors], dict(aliases)]))


def _over(digests: Iterable[str]) -> str:
    return blake3(b"".join(map(bytes.fromhex, digests))).hexdigest()


# Keys -----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Place:
    """The version and route that an object of the store belongs to. `route` (a folder name) is empty for objects of the
    version itself."""

    version: Version
    route: str
    file: str


def folder(version: Version) -> str:
    return f"{FOLDER}{version.lineage:04d}/{version.number:08d}/"


def manifest_key(version: Version) -> str:
    return folder(version) + NAME


def route_key(version: Version, base: Version | None) -> str:
    """Returns the key of the document of a route that is not the manifest's own."""
    return f"{folder(version)}{folder_name(base)}/{ROUTE}"


def part_key(version: Version, base: Version | None, chunks: Iterable[str]) -> str:
    return f"{folder(version)}{folder_name(base)}/{_over(chunks)[:32]}{PART}"


def route_name(version: Version, base: Version | None) -> str:
    """Returns the route's name, unique in the run: `0001.00000007/full`, `0001.00000007/from-0001.00000006`."""
    return f"{_dotted(version)}/{folder_name(base)}"


def folder_name(base: Version | None) -> str:
    """Returns the folder of a route from `base`, within its version's: `full`, or `from-0001.00000006`."""
    return f"from-{_dotted(base)}" if base else "full"


def place_of(key: str) -> Place | None:
    """Parses an object's key; None if no part of the published weights has such a key."""
    found = PLACE.fullmatch(key)
    return Place(Version(int(found[1]), int(found[2])), found[3] or "", found[4]) if found else None


def base_of(folder_name: str) -> Version | None:
    """Returns the base that `folder_name` made the name from (None: from nothing)."""
    if folder_name == "full":
        return None
    lineage, number = folder_name.removeprefix("from-").split(".")
    return Version(int(lineage), int(number))


def _dotted(version: Version) -> str:
    return f"{version.lineage:04d}.{version.number:08d}"


# Decoding -------------------------------------------------------------------------------------------------------------


def _head(kind: str, run: str, version: Version) -> dict[str, Any]:
    return {"format": FORMAT, "kind": kind, "run": run, "lineage": version.lineage, "number": version.number}


def _base_body(base: Version | None, root: str | None) -> dict[str, Any] | None:
    return base and {"lineage": base.lineage, "number": base.number, "root": root}


def _decode(body: bytes, where: str, kind: str, make: Callable[[Any], T]) -> T:
    try:
        values = orjson.loads(body)
        if values["format"] != FORMAT:
            fix = "upgrade this installation"
            raise ServiceError(Problem(where, f"is of format {values['format']!r:.20}, which is unknown", fix))
        if values["kind"] != kind:
            _refuse(f"it is a {values['kind']!r:.20}")
        made = make(values)
        if made.encode() != body:
            _refuse("its JSON is not in the canonical spelling")
    except (LookupError, TypeError, AttributeError, ValueError) as error:  # orjson's are ValueErrors
        raise Damaged(Problem(where, f"is no {kind}: {error}", "publish the version again")) from None
    return made


def _manifest_of(values: Any) -> Manifest:
    tensors = tuple(_tensor(one) for one in values["tensors"])
    aliases = {_text(name): _text(owner) for name, owner in values["aliases"].items()}
    names = {tensor.name for tensor in tensors}
    if len(names) != len(tensors) or not names.issuperset(aliases.values()) or names & aliases.keys():
        _refuse("a tensor's name stands twice, or an alias names none")
    ordered = sorted(tensors, key=lambda tensor: tensor.name)
    if tuple(ordered) != tensors or any(alias < owner for alias, owner in aliases.items()):
        _refuse("its tensors are not sorted by name, or an alias comes before its owner")
    if values["root"] != root_digest(tensors, aliases):
        _refuse("its root is not that of its tensors")
    if values["piece_bytes"] != PIECE_BYTES:
        _refuse(f"its pieces have {values['piece_bytes']!r:.20} bytes, not {PIECE_BYTES}")
    route = _route_of(values)
    return Manifest(route.run, route.version, tensors, aliases, route.root, route, PIECE_BYTES)


def _tensor(values: Any) -> TensorInfo:
    shape, dtype = values["shape"], values["dtype"]
    if not isinstance(shape, list) or len(shape) > DIMENSIONS_MAX:
        _refuse(f"a tensor's shape is {shape!r:.100}")
    if dtype not in ITEM_BYTES or math.prod(map(_count, shape)) >= NUMBER_MAX:
        _refuse(f"a tensor is {dtype!r:.20} of {shape!r:.100}")
    return TensorInfo(_text(values["name"]), dtype, tuple(shape), _digest(values["digest"]))


def _route_of(values: Any) -> Route:
    version = _version(values)
    base, base_root = _base(version, values["route"]["base"])
    if len(values["route"]["parts"]) > PARTS_MAX:
        _refuse(f"it has more than {PARTS_MAX} parts")
    parts = tuple(_part(version, base, one) for one in values["route"]["parts"])
    if len({part.key for part in parts}) != len(parts):
        _refuse("a part stands twice")
    return Route(_text(values["run"]), version, base, _digest(values["root"]), base_root, parts)


def _announcement_of(values: Any) -> Announcement:
    version = _version(values)
    base, base_root = _base(version, values["base"])
    place, part = _count(values["place"]), _part(version, base, values["part"])
    if place >= PARTS_MAX:
        _refuse(f"its place is {place}, and no route has more than {PARTS_MAX} parts")
    return Announcement(_text(values["run"]), version, base, base_root, place, part)


def _version(values: Any) -> Version:
    return Version(_count(values["lineage"]), _count(values["number"]))


def _base(version: Version, values: Any) -> tuple[Version, str] | tuple[None, None]:
    if values is None:
        return None, None
    base = _version(values)
    if base.lineage != version.lineage or base >= version:
        _refuse(f"{base} is not before {version} in its lineage")
    return base, _digest(values["root"])


def _part(version: Version, base: Version | None, values: Any) -> Part:
    size, chunk_bytes = _count(values["size"]), _count(values["chunk_bytes"])
    chunks, salt = tuple(map(_digest, values["chunks"])), _text(values["salt"])
    fits = 0 < size <= PART_MAX_BYTES and 0 < chunk_bytes <= CHUNK_MAX_BYTES
    if not fits or len(chunks) != -(-size // chunk_bytes):
        _refuse(f"{len(chunks)} chunks of {chunk_bytes} bytes do not fill {size}")
    part = Part(part_key(version, base, chunks), size, chunk_bytes, chunks, salt)
    if not SALT.fullmatch(salt) or (salt and part.length(len(chunks) - 1) <= TAG_BYTES):
        _refuse("an encrypted part has no salt, or a chunk with nothing in it")
    return part


def _count(value: object) -> int:
    if type(value) is not int or not 0 <= value < NUMBER_MAX:
        _refuse(f"{value!r:.100} is no count")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        _refuse(f"{value!r:.100} is no text")
    return value


def _digest(value: object) -> str:
    if not DIGEST.fullmatch(_text(value)):
        _refuse(f"{value!r:.100} is no digest")
    return str(value)


def _refuse(rule: str) -> NoReturn:
    raise ValueError(rule)
