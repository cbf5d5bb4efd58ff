"""Writes and reads a shard's bytes: magic, a compressed JSON header that lists its pieces, then their streams.

Reading a shard never allocates more than its own header states, and at most `MAX_HEADER` for that header; every
departure from the format raises `BadDelta`. No element is in two pieces of a shard, so that the work for a shard is
bounded by the tensors to which it is applied.
"""

import math
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal, get_args

import orjson

from echo_queue.errors import Problem, ServiceError
from echo_queue.weights.delta.streams import MalformedStream, Packed, expand, pack
from echo_queue.weights.manifest import DIGEST, DIMENSIONS_MAX, ITEM_BYTES, NUMBER_MAX, PIECE_BYTES

MAGIC, OLDER = b"EQD2", b"EQD1"
MAX_HEADER = 16 << 20
LENGTHS = struct.Struct("<II")

Kind = Literal["same", "gaps", "classes", "dense", "full"]


class BadDelta(ServiceError):
    """The shard is damaged, or belongs to other tensors than those to which it is applied."""

    def __init__(self, where: str, what: str, fix: str = "fetch it again, or fetch an anchor instead") -> None:
        super().__init__(Problem(where, what, fix))


@dataclass(frozen=True)
class Piece:
    """Elements `start … start + count − 1` of a flattened tensor: how they are made, and the digest of the result.

    `names`: the tensor's own, then those tied to it. `digest`: BLAKE3 of the resulting bytes, in hex. `bits`: 4 or 8,
    the width of a symbol (0 where the kind has none). `streams`: stored and expanded length of each.
    """

    names: tuple[str, ...]
    dtype: str
    shape: tuple[int, ...]
    start: int
    count: int
    kind: Kind
    digest: str
    bits: int = 0
    streams: tuple[tuple[int, int], ...] = ()

    @property
    def stored(self) -> int:
        return sum(stored for stored, _ in self.streams)

    @property
    def width(self) -> int:
        """The bytes of an element."""
        return ITEM_BYTES[self.dtype]

    @property
    def elements(self) -> int:
        """The elements of the whole tensor."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class Shard:
    """A shard: its bytes, and the pieces that its header lists."""

    data: bytes
    pieces: tuple[Piece, ...]


def longest_stream(count: int) -> int:
    """Returns the largest expanded length of a stream of a piece with so many elements, in bytes."""
    return 1024 + 2 * count


def seal(pieces: Sequence[Piece], streams: Sequence[Sequence[Packed]]) -> Shard:
    """Returns the shard of `pieces`; `streams`: those of each piece."""
    header = orjson.dumps(pieces)
    if len(header) > MAX_HEADER:
        raise ValueError(f"a header of {len(header)} bytes: make shards smaller")
    packed = pack(header, header=True)
    lengths = LENGTHS.pack(len(packed.data), packed.length)
    body = (stream.data for stream in chain.from_iterable(streams))
    return Shard(b"".join((MAGIC, lengths, packed.data, *body)), tuple(pieces))


def read_header(data: bytes | memoryview) -> tuple[tuple[Piece, ...], int]:
    """Returns a shard's pieces, and the offset at which their streams begin. Raises `BadDelta`."""
    view = memoryview(data)
    start = len(MAGIC) + LENGTHS.size
    if view[: len(MAGIC)] == OLDER:
        what = f"is of the format {OLDER.decode()}, but this release reads {MAGIC.decode()}"
        raise BadDelta("delta shard", what, "run the same release of echo-queue on the learner and on all workers")
    if len(view) < start or view[: len(MAGIC)] != MAGIC:
        raise BadDelta("delta shard", f"does not begin with {MAGIC.decode()}")
    stored, length = LENGTHS.unpack(view[len(MAGIC) : start])
    if length > MAX_HEADER or stored > len(view) - start:
        raise BadDelta("delta shard", "its header is cut short or too long")
    try:
        header = expand(view[start : start + stored], length)
        pieces = tuple(_piece(entry) for entry in orjson.loads(header))
        _check_cut(pieces)
        if orjson.dumps(pieces) != header:
            raise ValueError("it is not spelled as a writer spells it")
    except (MalformedStream, orjson.JSONDecodeError, KeyError, TypeError, ValueError) as error:
        raise BadDelta("delta shard", f"its header is damaged: {error}") from None
    if start + stored + sum(piece.stored for piece in pieces) != len(view):
        raise BadDelta("delta shard", "its length is not what its header says")
    return pieces, start + stored


def _piece(entry: dict[str, Any]) -> Piece:
    piece = Piece(
        names=tuple(_text(name) for name in entry["names"]),
        dtype=_text(entry["dtype"]),
        shape=tuple(_size(size) for size in entry["shape"]),
        start=_size(entry["start"]),
        count=_size(entry["count"]),
        kind=entry["kind"],
        digest=_text(entry["digest"]),
        bits=_size(entry["bits"]),
        streams=tuple((_size(stored), _size(length)) for stored, length in entry["streams"]),
    )
    _check_place(piece)
    _check_streams(piece)
    return piece


def _check_place(piece: Piece) -> None:
    if not piece.names or len(set(piece.names)) != len(piece.names) or not DIGEST.fullmatch(piece.digest):
        raise ValueError(f"a piece named {piece.names!r:.100} with the digest {piece.digest!r:.100}")
    if piece.dtype not in ITEM_BYTES or len(piece.shape) > DIMENSIONS_MAX or piece.elements >= NUMBER_MAX:
        raise ValueError(f"a piece of a tensor of {piece.dtype!r:.20} {piece.shape!r:.100}")
    if piece.start + piece.count > piece.elements or (not piece.count and piece.elements):
        raise ValueError(f"a piece of {piece.count} elements from {piece.start} on, in a tensor of {piece.elements}")
    if piece.count * piece.width > PIECE_BYTES:
        raise ValueError(f"a piece of {piece.count} elements of {piece.width} bytes is too long")


def _check_streams(piece: Piece) -> None:
    if piece.kind not in get_args(Kind):
        raise ValueError(f"a piece of kind {piece.kind!r:.20}")
    if piece.bits not in ((4, 8) if piece.kind in ("gaps", "dense") else (0,)):
        raise ValueError(f"symbols of {piece.bits} bits in a piece of kind {piece.kind}")
    counts = {"same": 0, "full": piece.width, "dense": 1 + piece.width, "gaps": 2 + piece.width, "classes": 5}
    if len(piece.streams) != counts[piece.kind]:
        raise ValueError(f"{len(piece.streams)} streams in a piece of kind {piece.kind}")
    if any(length > longest_stream(piece.count) for _, length in piece.streams):
        raise ValueError(f"a stream that is longer than {piece.count} elements can need")


def _check_cut(pieces: Iterable[Piece]) -> None:
    """Raises `ValueError` if an element is in two pieces, or if pieces do not agree which tensors are tied."""
    tied: dict[str, tuple[str, ...]] = {}
    ends: dict[str, int] = {}
    for piece in sorted(pieces, key=lambda one: one.start):
        owner = piece.names[0]
        if any(tied.setdefault(name, piece.names) != piece.names for name in piece.names):
            raise ValueError(f"{owner!r:.100} is tied to other tensors in another piece")
        if owner in ends and (piece.start < ends[owner] or not piece.count):
            raise ValueError(f"element {piece.start} of {owner!r:.100} is in two pieces")
        ends[owner] = piece.start + piece.count


def _size(value: object) -> int:
    if type(value) is not int or not 0 <= value < NUMBER_MAX:
        raise ValueError(f"{value!r} is no size")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is no text")
    return value
