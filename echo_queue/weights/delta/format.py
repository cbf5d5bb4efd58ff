"""Writes and reads a shard's bytes: magic, a compressed JSON header that lists its pieces, then their streams.

Reading a shard never allocates more than its own header states, and at most `MAX_HEADER` for that header; every
departure from the format raises `BadDelta`.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal, get_args

import orjson

from echo_queue.errors import Problem, ServiceError
from echo_queue.weights.delta.streams import MalformedStream, Packed, expand, pack

MAGIC, OLDER = b"EQD2", b"EQD1"
MAX_HEADER = 16 << 20
PIECE_BYTES = 4 << 20
"""The largest number of a tensor's bytes in one piece."""
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
        entries = orjson.loads(expand(view[start : start + stored], length))
        pieces = tuple(_piece(entry) for entry in entries)
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
    if not piece.names or piece.kind not in get_args(Kind):
        raise ValueError(f"a piece of kind {piece.kind} with {len(piece.names)} names")
    if piece.count > PIECE_BYTES:
        raise ValueError(f"a piece of {piece.count} elements")
    return piece


def _size(value: object) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is no size")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is no text")
    return value
