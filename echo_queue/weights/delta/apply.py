"""Applies shards to a copy in memory that the caller gives, or in place.

- After `apply` returns, every piece in `out` has the digest that the shard names.
- In place, what is refused is what is refused in a copy, and a piece whose result is wrong is restored. Pieces before
  the failing one stay applied.
- Whatever the bytes say, allocations never exceed some thirty times the size of a piece of the caller's own tensors.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from echo_queue.weights.delta.change import Change, change_of
from echo_queue.weights.delta.codes import Codes, digest, dtype_name, flat, join, on_host, sign_first
from echo_queue.weights.delta.format import BadDelta, Piece, read_header
from echo_queue.weights.delta.streams import Bytes, MalformedStream, expand

if TYPE_CHECKING:
    from torch import Tensor


def apply(
    shard: bytes | memoryview, base: "Mapping[str, Tensor]", out: "Mapping[str, Tensor]", check: bool = True
) -> tuple[Piece, ...]:
    """Makes the shard's pieces of the new version in `out` from those of the old version in `base`; returns them.

    `out` has a contiguous CPU tensor of the right type and shape for each of the shard's names; tied names may share
    one. A tensor with the same memory in `base` and `out` is changed in place. `base` need not have tensors that the
    shard holds in full; for the shard of an anchor it is empty, so that no other kinds are taken. Raises `BadDelta`.
    `check=False` skips the digests, for callers that check them elsewhere.
    """
    view = memoryview(shard)
    pieces, start = read_header(view)
    for piece in pieces:
        streams = view[start : start + piece.stored]
        start += piece.stored
        try:
            _apply(piece, streams, base, out, check)
        except MalformedStream as error:
            raise BadDelta(_where(piece), str(error)) from None
    return pieces


def _apply(
    piece: Piece, data: memoryview, base: "Mapping[str, Tensor]", out: "Mapping[str, Tensor]", check: bool
) -> None:
    target = _part(piece, piece.names[0], out)
    if piece.kind == "full":
        made = _full(piece, _streams(piece, data))
        if check:
            _verify(piece, made)
        np.copyto(target, made)
    else:
        name = piece.names[0]
        source = target if base.get(name) is out.get(name) else _part(piece, name, base)
        if len(target) and source.ctypes.data == target.ctypes.data:
            _in_place(piece, data, target, check)
        else:
            _copy(piece, data, source, target)
            if check:
                _verify(piece, target)
    for alias in piece.names[1:]:
        other = _part(piece, alias, out)
        if len(other) and other.ctypes.data != target.ctypes.data:
            np.copyto(other, target)


def _copy(piece: Piece, data: memoryview, source: Codes, target: Codes) -> None:
    np.copyto(target, source)
    if piece.kind != "same":
        change_of(piece, _streams(piece, data)).add(target)


def _in_place(piece: Piece, data: memoryview, codes: Codes, check: bool) -> None:
    """Changes a piece in place, or leaves it as it was."""
    change: Change | None = None
    if piece.kind != "same":
        change = change_of(piece, _streams(piece, data))
    try:
        if change is not None:
            change.add(codes)
        if check:
            _verify(piece, codes)
    except (BadDelta, MalformedStream):
        if change is not None:
            change.take_back(codes)
        raise


def _part(piece: Piece, name: str, tensors: "Mapping[str, Tensor]") -> Codes:
    """Returns the codes of a piece of a tensor: the caller's memory, not a copy. Raises `BadDelta`."""
    tensor = tensors.get(name)
    if tensor is None:
        raise BadDelta(_where(piece), f"there is no tensor {name!r} to apply it to")
    if tensor.device.type != "cpu" or not tensor.is_contiguous():
        raise ValueError(f"{name}: deltas are applied to contiguous tensors on the CPU")
    if (dtype_name(tensor), tuple(tensor.shape)) != (piece.dtype, piece.shape):
        raise BadDelta(_where(piece), f"the tensor here is {dtype_name(tensor)} {tuple(tensor.shape)}")
    return on_host(flat(tensor))[piece.start : piece.start + piece.count]


def _streams(piece: Piece, data: memoryview) -> list[Bytes]:
    """Returns the piece's streams expanded."""
    streams, start = [], 0
    for stored, length in piece.streams:
        streams.append(np.frombuffer(expand(data[start : start + stored], length), np.uint8))
        start += stored
    return streams


def _full(piece: Piece, streams: list[Bytes]) -> Codes:
    if any(len(plane) != piece.count for plane in streams):
        raise MalformedStream(f"not {piece.count} codes")
    return sign_first(join(streams))


def _verify(piece: Piece, codes: Codes) -> None:
    if digest(codes) != piece.digest:
        raise BadDelta(_where(piece), "the result is not what was encoded")


def _where(piece: Piece) -> str:
    return f"delta of {piece.names[0]} from element {piece.start}"
