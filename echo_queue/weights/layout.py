"""Divides a version's tensors into parts, and parts among the ranks that publish them; holds a rank's share of both.

- A layout is a pure function of names, types, shapes and `weights.part_bytes`: all ranks make the same one.
- A share has the elements of one rank's parts alone. One process has them all.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from echo_queue.weights.delta.codes import flat
from echo_queue.weights.delta.encode import tied
from echo_queue.weights.delta.stretches import Stretch, shards, stretches
from echo_queue.weights.manifest import PIECE_BYTES, TensorInfo, tensor_digest
from echo_queue.weights.tensors import untie

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Layout:
    """The parts of a version whose own tensors are distinct, sorted by name; `aliases`: further name → its owner."""

    parts: tuple[tuple[Stretch, ...], ...]
    aliases: Mapping[str, str]

    @classmethod
    def of(cls, tensors: "Mapping[str, Tensor]", aliases: Mapping[str, str], part_bytes: int) -> Self:
        """Returns the layout of `tensors`, which may be on the meta device; `part_bytes` of them go into each part."""
        ties = tied(aliases)
        cut = (one for n in sorted(tensors) for one in stretches((n, *ties.get(n, ())), tensors[n], PIECE_BYTES))
        return cls(tuple(shards(cut, part_bytes)), aliases)

    @property
    def nbytes(self) -> int:
        """The bytes of all tensors."""
        return sum(stretch.nbytes for part in self.parts for stretch in part)

    def owner(self, place: int, ranks: int) -> int:
        """Returns the rank that makes a part. They take turns, so that parts can be announced in order as they come."""
        return place % ranks

    def places(self, rank: int, ranks: int) -> range:
        """Returns the places of a rank's parts. Parts are about equally large, and so are the shares of all ranks."""
        return range(rank, len(self.parts), ranks)

    def described(self, digests: Sequence[Sequence[str]]) -> tuple[TensorInfo, ...]:
        """Describes the tensors. `digests`: those of the pieces of each part, in order."""
        pieces: dict[str, list[str]] = {}
        tensors: dict[str, Stretch] = {}
        for part, found in zip(self.parts, digests, strict=True):
            for stretch, digest in zip(part, found, strict=True):
                pieces.setdefault(stretch.names[0], []).append(digest)
                tensors[stretch.names[0]] = stretch
        return tuple(
            TensorInfo(name, one.dtype, one.shape, tensor_digest(pieces[name])) for name, one in tensors.items()
        )


@dataclass(frozen=True, eq=False)
class Share:
    """One rank's share of a version: `rows` has the elements of its parts' stretches, as `flat` integers.

    The memory is its own: nothing else changes it.
    """

    layout: Layout
    rows: "Mapping[Stretch, Tensor]"
    rank: int = 0
    ranks: int = 1

    @property
    def places(self) -> range:
        """The places of its parts."""
        return self.layout.places(self.rank, self.ranks)

    @classmethod
    def whole(cls, tensors: "Mapping[str, Tensor]", dtype: str, part_bytes: int) -> Self:
        """Copies all of `tensors`, each on its own device, floating ones as `dtype` ("float32" or "bfloat16")."""
        import torch

        kind: torch.dtype = getattr(torch, dtype)
        distinct, aliases = untie(tensors)
        copies = {
            name: tensor.detach().to(kind if tensor.is_floating_point() else tensor.dtype, copy=True).contiguous()
            for name, tensor in distinct.items()
        }
        return cls.of_copies(copies, aliases, part_bytes)

    @classmethod
    def of_copies(cls, copies: "Mapping[str, Tensor]", aliases: Mapping[str, str], part_bytes: int) -> Self:
        """Takes over all of `copies`, each contiguous and in the type in which it is published."""
        layout = Layout.of(copies, aliases, part_bytes)
        flats = {name: flat(copy) for name, copy in copies.items()}
        return cls(layout, {
            one: flats[one.names[0]][one.start : one.start + one.count] for part in layout.parts for one in part
        })  # fmt: skip
