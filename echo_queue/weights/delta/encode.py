"""Encodes the tensors of one version against those of another, each piece in the way that makes it smallest.

The input is not changed. A tensor that cannot be a difference (it is new, or has another shape or type) is stored in
full.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from echo_queue.weights.delta import classes, gaps, rans, symbols
from echo_queue.weights.delta.codes import Codes, digest, dtype_name, exponents_first, flat, on_host, split, zigzag
from echo_queue.weights.delta.format import PIECE_BYTES, Kind, Piece, Shard, longest_stream, seal
from echo_queue.weights.delta.pairs import Pair, pair
from echo_queue.weights.delta.streams import Bytes, Packed, pack

if TYPE_CHECKING:
    from torch import Tensor

DENSE = 0.3
"""The share of changed elements from which on differences of all elements are smaller than positions."""
FEW = 1024
"""Up to this number of changes in a piece, tables of frequencies may cost more than they save."""
WORD = 8
"""Pieces begin at a multiple of so many elements, and so at a whole word."""
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

    Both mappings are read one tensor at a time and may read them from files. `aliases`: further names of tensors in
    `new` (tied weights) → the name there; they are stored once. Differences are computed on the device that holds both
    versions.
    """
    settings = settings or Settings()
    ties: dict[str, list[str]] = {}
    for alias, owner in sorted((aliases or {}).items()):
        ties.setdefault(owner, []).append(alias)
    pieces: list[Piece] = []
    streams: list[tuple[Packed, ...]] = []
    size = 0
    for name, tensor in new.items():
        for piece, coded in _pieces((name, *ties.get(name, [])), base.get(name), tensor, settings):
            length = piece.count * tensor.element_size()
            if pieces and size + length > settings.shard_bytes:
                yield seal(pieces, streams)
                pieces, streams, size = [], [], 0
            pieces.append(piece)
            streams.append(coded)
            size += length
    if pieces:
        yield seal(pieces, streams)


def _pieces(
    names: tuple[str, ...], base: "Tensor | None", new: "Tensor", settings: Settings
) -> Iterator[tuple[Piece, tuple[Packed, ...]]]:
    """Yields a tensor's pieces and their streams: at least one, even if it is empty, so that each tensor is named."""
    if base is not None and (base.shape != new.shape or base.dtype != new.dtype):
        base = None
    whole = Piece(names, dtype_name(new), tuple(new.shape), 0, 0, "same", "")
    new_row, base_row = flat(new), None if base is None else flat(base)
    step = max(1, settings.piece_bytes // new.element_size() // WORD) * WORD
    for start in range(0, max(1, len(new_row)), step):
        part = new_row[start : start + step]
        codes = on_host(part)
        if base_row is None:
            coded = _full(codes)
        else:
            coded = _smallest(pair(base_row[start : start + step], part, codes), codes, settings)
        lengths = tuple((len(stream.data), stream.length) for stream in coded.streams)
        piece = replace(
            whole,
            start=start,
            count=len(codes),
            kind=coded.kind,
            digest=digest(codes),
            bits=coded.bits,
            streams=lengths,
        )
        yield piece, coded.streams


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
