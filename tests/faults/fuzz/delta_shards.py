"""Shards of deltas for the fuzzer: any bytes as a shard, as a header behind a right prefix, or as a piece's streams.

The tensors lie between guards that no shard may touch. What is refused leaves a tensor that was to be changed in place
as it was, and what is applied in place is what is made in a copy.
"""

import struct
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson

from echo_queue.weights.delta import BadDelta, Piece, Settings, Shard, apply, classes, encode, rans, read_header
from echo_queue.weights.delta.codes import digest, unzigzag
from echo_queue.weights.delta.format import LENGTHS, MAGIC, seal
from echo_queue.weights.delta.streams import Packed, pack

if TYPE_CHECKING:
    from torch import Tensor

TYPES = {1: "U8", 2: "I16", 4: "I32", 8: "I64"}
COUNT = 27
"""Codes of each tensor here: some words, and a part of one."""
GUARD = 64
FILLING = 0xA5
KINDS = ("gaps", "classes", "dense", "full")
FIELDS = struct.Struct("<BBB")


class Memory:
    """A tensor of each width, with guards around its codes."""

    def __init__(self) -> None:
        random = np.random.default_rng(0)
        self.whole = {width: np.full(2 * GUARD + COUNT * width, FILLING, np.uint8) for width in TYPES}
        for part in self.parts():
            part[:] = random.integers(0, 256, len(part), dtype=np.uint8)

    def parts(self) -> "list[np.ndarray[Any, np.dtype[np.uint8]]]":
        return [whole[GUARD:-GUARD] for whole in self.whole.values()]

    def tensors(self) -> "dict[str, Tensor]":
        import torch

        return {
            TYPES[width]: torch.from_numpy(part.view(f"i{width}" if width > 1 else "u1"))
            for width, part in zip(self.whole, self.parts(), strict=True)
        }

    def contents(self) -> list[bytes]:
        return [part.tobytes() for part in self.parts()]

    def guarded(self) -> bool:
        return all(
            (whole[:GUARD] == FILLING).all() and (whole[-GUARD:] == FILLING).all() for whole in self.whole.values()
        )


def take(data: bytes, check: bool = True) -> None:
    base, copy, in_place = Memory(), Memory(), Memory()
    before, made = base.contents(), []
    for out in (copy, in_place):
        try:
            apply(data, (in_place if out is in_place else base).tensors(), out.tensors(), check=check)
            made.append(True)
        except BadDelta:
            made.append(False)
        assert base.guarded() and copy.guarded() and in_place.guarded(), "memory of others was written"
    assert base.contents() == before, "the base was changed"
    if len(_pieces(data)) > 1:  # they may be of one tensor, and what the first has made the second finds only in place
        return
    assert made[0] == made[1] and (copy.contents() == in_place.contents() or not made[0]), (
        "a copy and a change in place do not agree"
    )
    if not made[1]:
        assert in_place.contents() == before, "what was refused was not taken back"


def _pieces(data: bytes) -> tuple[Piece, ...]:
    try:
        return read_header(data)[0]
    except BadDelta:
        return ()


def take_header(data: bytes) -> None:
    """Behind it are the streams of the seed."""
    _, start = read_header(_shards()[0].data)
    header = pack(data)
    take(MAGIC + LENGTHS.pack(len(header.data), header.length) + header.data + _shards()[0].data[start:])


def take_streams(data: bytes) -> None:
    """Kind, bits and width; the streams' lengths, a byte each; the streams. Their digest is not asked for."""
    if len(data) < FIELDS.size:
        return
    kind, bits, width = FIELDS.unpack_from(data)
    kind_name, width = KINDS[kind % len(KINDS)], list(TYPES)[width % len(TYPES)]
    count = {"full": width, "dense": 1 + width, "gaps": 2 + width, "classes": 5}[kind_name]
    lengths, at, streams = data[FIELDS.size : FIELDS.size + count], FIELDS.size + count, []
    for length in lengths:
        stream = data[at : at + length]
        at += length
        streams.append(Packed(stream, len(stream)))
    sizes = tuple((stream.length, stream.length) for stream in streams)
    piece = Piece((TYPES[width],), TYPES[width], (COUNT,), 0, COUNT, kind_name, "0" * 64, bits, sizes)  # type: ignore[arg-type]
    take(seal([piece], [streams]).data, check=False)


# Seeds ----------------------------------------------------------------------------------------------------------------


def _changed(share: float, reach: int) -> "dict[str, Tensor]":
    import torch

    random = np.random.default_rng(1)
    new = {name: tensor.clone() for name, tensor in Memory().tensors().items()}
    for tensor in new.values():
        chosen = torch.from_numpy(random.random(COUNT) < share)
        chosen[3] = True
        tensor[chosen] += reach
    return new


@cache
def _shards() -> list[Shard]:
    base = Memory().tensors()
    versions = [_changed(share, reach) for share, reach in ((0.05, 1), (0.05, 40), (1, 3), (1, 100))]
    how = Settings(classes_below=0)
    return [*(shard for new in versions for shard in encode(base, new, settings=how)), _in_classes()]


def _in_classes() -> Shard:
    """A shard that codes three changes of each tensor by classes, which no writer would do for so few."""
    pieces, streams = [], []
    for part, (width, name) in zip(Memory().parts(), TYPES.items(), strict=True):
        codes, places = part.view(f"u{width}"), np.array([3, 8, 26], np.uint32)
        changes = classes.sort(places, np.ones(3, codes.dtype), codes)
        values = np.array([0, 5, 40], np.uint64)
        packed = [
            Packed(stream.tobytes(), len(stream))
            for stream in (classes.write_counts(changes.counts), *rans.write(changes.gaps, values))
        ]
        sizes = tuple((stream.length, stream.length) for stream in packed)
        codes[classes.positions(changes, codes)] += unzigzag((values + np.uint64(1)).astype(codes.dtype))
        pieces.append(Piece((name,), name, (COUNT,), 0, COUNT, "classes", digest(codes), 0, sizes))
        streams.append(packed)
    return seal(pieces, streams)


def shards() -> Sequence[bytes]:
    return [shard.data for shard in _shards()]


def headers() -> Sequence[bytes]:
    return [orjson.dumps(_shards()[0].pieces)]


def streams() -> Sequence[bytes]:
    """Every piece of the seeds, with its streams expanded: they are stored as they are, being so short."""
    found = []
    for shard in _shards():
        _, at = read_header(shard.data)
        for piece in shard.pieces:
            data = shard.data[at : at + piece.stored]
            at += piece.stored
            if piece.kind != "same" and all(stored == length for stored, length in piece.streams):
                width = list(TYPES.values()).index(piece.dtype)
                fields = FIELDS.pack(KINDS.index(piece.kind), piece.bits, width)
                found.append(fields + bytes(length for _, length in piece.streams) + data)
    return found
