"""Takes each rank's share of the weights to publish: each rank sends its rows to the ranks that publish them.

No rank ever holds more than its own share, one part more, and its own rows of as many parts as there are ranks.
"""

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import TypeVar

import torch
from torch import Tensor, distributed
from torch.distributed.tensor import DTensor

from echo_queue.weights.delta.codes import flat
from echo_queue.weights.delta.stretches import Stretch
from echo_queue.weights.host_memory import fill, rooms_for
from echo_queue.weights.layout import Layout, Share
from learner.model.sharding import local, rounded_type
from learner.ranks.team import Team

K = TypeVar("K", bound=Hashable)


@torch.no_grad()
def take_share(
    weights: Mapping[str, Tensor], dtype: torch.dtype, team: Team, part_bytes: int, *, on_host: bool = False
) -> Share:
    """Returns this rank's share of a copy of `weights` in `dtype`, on their device or `on_host`, then complete.

    `weights`: sharded by rows over all ranks, or whole on each of them; each tensor once. All ranks call it together.
    """
    if team.size == 1:
        whole = {name: local(weight).detach() for name, weight in weights.items()}
        if on_host:
            types = {name: rounded_type(weight, dtype) for name, weight in whole.items()}
            return Share.of_copies(copied_to_host(whole, types), {}, part_bytes)
        return Share.whole(whole, str(dtype).removeprefix("torch."), part_bytes)
    types = {name: rounded_type(weight, dtype) for name, weight in weights.items()}
    shapes = {name: torch.empty(one.shape, dtype=types[name], device="meta") for name, one in weights.items()}
    layout = Layout.of(shapes, {}, part_bytes)
    exchange = _Exchange(weights, types, team)
    share: dict[Stretch, Tensor] = {}
    for first in range(0, len(layout.parts), team.size):
        mine = exchange.part(layout.parts[first : first + team.size])
        share |= copied_to_host(mine) if on_host else mine
    return Share(layout, share, team.rank, team.size)


def copied_to_host(tensors: Mapping[K, Tensor], types: Mapping[K, torch.dtype] | None = None) -> dict[K, Tensor]:
    """Returns copies in host memory, in other `types` if they are given; of a GPU's tensors in pinned memory."""
    kinds = types or {key: tensor.dtype for key, tensor in tensors.items()}
    alike = [torch.empty(tensor.shape, dtype=kinds[key], device="meta") for key, tensor in tensors.items()]
    rooms = rooms_for(alike, pinned=any(tensor.is_cuda for tensor in tensors.values()))
    fill(rooms, [*tensors.values()])
    return dict(zip(tensors, rooms, strict=True))


class _Exchange:
    """Brings the rows of parts to their ranks. `types`: the type in which each tensor is published."""

    def __init__(self, weights: Mapping[str, Tensor], types: Mapping[str, torch.dtype], team: Team) -> None:
        self._types, self._team = types, team
        self._rows = {name: local(weight).detach().reshape(-1) for name, weight in weights.items()}
        self._sharded = {name for name, weight in weights.items() if isinstance(weight, DTensor)}
        self._device = next(row.device for row in self._rows.values())

    def part(self, parts: Sequence[Sequence[Stretch]]) -> dict[Stretch, Tensor]:
        """Sends this rank's rows of each part to the rank of that number; returns this rank's part, if there is one."""
        rank, size = self._team.rank, self._team.size
        mine = parts[rank] if rank < len(parts) else ()
        sent = [[self._row(*piece) for piece in self._pieces(part, rank)] for part in parts]
        sizes = [sum(row.nbytes for row in rows) for rows in sent] + [0] * (size - len(parts))
        coming = [sum((end - first) * one.width for one, first, end in self._pieces(mine, r)) for r in range(size)]
        nothing = torch.empty(0, dtype=torch.uint8, device=self._device)
        together = torch.cat([nothing, *(row.view(torch.uint8) for rows in sent for row in rows)])
        received = torch.empty(sum(coming), dtype=torch.uint8, device=self._device)
        distributed.all_to_all_single(received, together, coming, sizes)
        return self._put_together(mine, received)

    def _put_together(self, part: Sequence[Stretch], received: Tensor) -> dict[Stretch, Tensor]:
        """Returns the part's stretches, as `flat` integers; `received` has the rows of all ranks, one after another."""
        made = {one: torch.empty(one.count, dtype=self._types[one.names[0]], device=self._device) for one in part}
        start = 0
        for rank in range(self._team.size):
            for stretch, first, end in self._pieces(part, rank):
                size = (end - first) * stretch.width
                target = made[stretch][first - stretch.start : end - stretch.start]
                target.view(torch.uint8).copy_(received[start : start + size])
                start += size
        return {stretch: flat(tensor) for stretch, tensor in made.items()}

    def _pieces(self, part: Sequence[Stretch], rank: int) -> Iterator[tuple[Stretch, int, int]]:
        """Yields what `rank` sends of a part's stretches: the elements from, and up to, of the flattened tensor."""
        for stretch in part:
            first, end = self._held(stretch, rank)
            first, end = max(first, stretch.start), min(end, stretch.start + stretch.count)
            if first < end:
                yield stretch, first, end

    def _held(self, stretch: Stretch, rank: int) -> tuple[int, int]:
        """Returns the elements of a tensor that `rank` sends. FSDP gives all ranks but the last equally many rows; what
        all ranks have is sent by rank 0."""
        if stretch.names[0] not in self._sharded:
            return 0, math.prod(stretch.shape) if rank == 0 else 0
        rows, width = stretch.shape[0], math.prod(stretch.shape[1:])
        each = -(-rows // self._team.size)
        return min(rank * each, rows) * width, min((rank + 1) * each, rows) * width

    def _row(self, stretch: Stretch, first: int, end: int) -> Tensor:
        """Returns the elements from `first` up to `end`, which this rank holds, as they are published."""
        name = stretch.names[0]
        start, _ = self._held(stretch, self._team.rank)
        return self._rows[name][first - start : end - start].to(self._device, self._types[name])
