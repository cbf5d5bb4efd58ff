"""Encodes the tensors of one version against those of another, each piece in the way that makes it smallest.

The input is not changed. A tensor that cannot be a difference (it is new, or has another shape or type) is stored in
full.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from echo_queue.weights.delta import classes, gaps, rans, symbols
from echo_queue.weights.delta.codes import Codes, digest, exponents_first, flat, on_host, split, zigzag
from echo_queue.weights.delta.format import Kind, Piece, Shard, longest_stream, seal
from echo_queue.weights.delta.pairs import Pair, pair
from echo_queue.weights.delta.streams import Bytes, Packed, pack
from echo_queue.weights.delta.stretches import Stretch, shards, stretches
from echo_queue.weights.manifest import PIECE_BYTES

if TYPE_CHECKING:
    from torch import Tensor

DENSE = 0.3
"""The share of changed elements from which on differences of all elements are smaller than positions."""
FEW = 1024
"""Up to this number of changes in a piece, tables of frequencies may cost more than they save."""
DOUBTFUL = 0.5
"""A difference of more than this share of the plain size is compared with storing the piece in full."""


@dataclass(frozen=True)
class Settings:
    """The sizes and the thresholds of the encoding.

    `piece_bytes`: bytes of a tensor that are coded at a time. `shard_bytes`: bytes of tensors in a shard (it has at
    least one piece). `classes_below`: up to this share of changed elements their positions are coded by classes, which
    is smaller by a quarter and takes up to four times as long: 1 where links bind, 0 where cores do. The default codes
    the updates of usual learning rates in RL by classes, and keeps its time within limits for larger ones.
    """

    piece_bytes: int = PIECE_BYTES
    shard_bytes: int = 64 << 20
    classes_below: float = 0.05


@dataclass(frozen=True)
class Coded:
    """A piece's content, coded as `kind`."""

    kind: Kind
    bits: int
    streams: tuple[Packed, ...]

    @property
    def size(self) -> int:
        return sum(len(stream.data) for stream in self.streams)


def encode(
    base: "Mapping[str, Tensor]",
    new: "Mapping[str, Tensor]",
    aliases: Mapping[str, str] | None = None,
    settings: Settings | None = None,
) -> Iterator[Shard]:
    """Yields shards that turn `base` into `new`, in the order of `new`.

    `aliases`: further names of tensors in `new` (tied weights) → the name there; they are stored once. Differences are
    computed on the device that holds both versions.
    """
    settings = settings or Settings()
    ties, tensor, old = tied(aliases or {}), lru_cache(1)(new.__getitem__), lru_cache(1)(base.get)
    cut = (one for name in new for one in stretches((name, *ties.get(name, ())), tensor(name), settings.piece_bytes))
    for shard in shards(cut, settings.shard_bytes):
        coded = [_encode_stretch(one, old(one.names[0]), tensor(one.names[0]), settings) for one in shard]
        yield seal(*zip(*coded, strict=True))


def tied(aliases: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """Returns the owner of each tied tensor → its further names, sorted."""
    ties: dict[str, tuple[str, ...]] = {}
    for alias, owner in sorted(aliases.items()):
        ties[owner] = (*ties.get(owner, ()), alias)
    return ties


def encode_piece(
    stretch: Stretch, versions: Pair | None, new: Codes, settings: Settings
) -> tuple[Piece, tuple[Packed, ...]]:
    """Returns the piece of one stretch, and its streams. Any thread may call it.

    `new`: the stretch's codes. `versions`: both versions of them; None: the base has no such tensor.
    """
    coded = _full(new) if versions is None else _smallest(versions, new, settings)
    lengths = tuple((len(stream.data), stream.length) for stream in coded.streams)
    piece = Piece(
        stretch.names,
        stretch.dtype,
        stretch.shape,
        stretch.start,
        stretch.count,
        coded.kind,
        digest(new),
        coded.bits,
        lengths,
    )
    return piece, coded.streams


def _encode_stretch(
    stretch: Stretch, base: "Tensor | None", new: "Tensor", settings: Settings
) -> tuple[Piece, tuple[Packed, ...]]:
    part = slice(stretch.start, stretch.start + stretch.count)
    row = flat(new)[part]
    codes = on_host(row)
    if base is None or (base.shape, base.dtype) != (new.shape, new.dtype):
        return encode_piece(stretch, None, codes, settings)
    return encode_piece(stretch, pair(flat(base)[part], row, codes), codes, settings)


def _smallest(versions: Pair, new: Codes, settings: Settings) -> Coded:
    changes = versions.changes(DENSE * len(new))
    if changes is None:
        coded = _dense(versions.differences())
    elif not len(changes[0]):
        return Coded("same", 0, ())
    else:
        coded = _sparse(*changes, versions, len(new), settings.classes_below)
    if coded.size > DOUBTFUL * new.nbytes:
        return min(coded, _full(new), key=lambda one: one.size)
    return coded


def _sparse(positions: gaps.Numbers, differences: Codes, versions: Pair, count: int, classes_below: float) -> Coded:
    if len(positions) > classes_below * count:
        return _gaps(positions, differences)
    coded = _classes(versions.classes(positions, differences))
    if any(stream.length > longest_stream(count) for stream in coded.streams):
        return _gaps(positions, differences)
    if len(positions) <= FEW:
        return min(coded, _gaps(positions, differences), key=lambda one: one.size)
    return coded


def _gaps(positions: gaps.Numbers, differences: Codes) -> Coded:
    values = _steps(differences)
    bits = symbols.width(values)
    return _coded("gaps", bits, [gaps.write(positions), *symbols.write(values, bits)])


def _classes(changes: classes.Classes) -> Coded:
    """Codes changes in class order. Only the first two streams are not as short as they can be already."""
    coded = rans.write(changes.gaps, _steps(changes.differences).astype(np.uint64))
    texts = classes.write_counts(changes.counts), coded.tables
    rest = coded.gaps, coded.values, coded.extra
    packed = (*(pack(stream.data) for stream in texts), *(Packed(stream.tobytes(), len(stream)) for stream in rest))
    return Coded("classes", 0, packed)


def _steps(differences: Codes) -> Codes:
    """Returns the values of differences that are not 0."""
    values = zigzag(differences)
    values -= 1
    return values


def _dense(differences: Codes) -> Coded:
    values = zigzag(differences)
    bits = symbols.width(values)
    return _coded("dense", bits, symbols.write(values, bits))


def _full(codes: Codes) -> Coded:
    return _coded("full", 0, split(exponents_first(codes)))


def _coded(kind: Kind, bits: int, streams: list[Bytes]) -> Coded:
    return Coded(kind, bits, tuple(pack(stream.data) for stream in streams))
