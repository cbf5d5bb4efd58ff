"""Takes each rank's share of the weights to publish: each rank sends its rows to the ranks that publish them.

No rank ever holds more than its own share, one part more, and its own rows of as many parts as there are ranks.
"""

import math
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor, distributed

from echo_queue.weights.delta.codes import flat
from echo_queue.weights.delta.stretches import Stretch
from echo_queue.weights.layout import Layout, Share
from learner.model.sharding import local
from learner.ranks.team import Team

Held = tuple[int, int]
"""The elements of a flattened tensor that a rank holds: from, and up to."""


@torch.no_grad()
def take_share(weights: Mapping[str, Tensor], dtype: torch.dtype, team: Team, part_bytes: int) -> Share:
    """Returns this rank's share of a copy of `weights` in `dtype`, on their device. All ranks call it together.

    `weights`: whole, or sharded by rows over all ranks; each tensor once.
    """
    if team.size == 1:
        whole = {name: local(weight) for name, weight in weights.items()}
        return Share.whole(whole, str(dtype).removeprefix("torch."), part_bytes)
    shapes = {name: torch.empty(weight.shape, dtype=dtype, device="meta") for name, weight in weights.items()}
    layout = Layout.of(shapes, {}, part_bytes)
    rows = {name: local(weight).detach().reshape(-1) for name, weight in weights.items()}
    share: dict[Stretch, Tensor] = {}
    for first in range(0, len(layout.parts), team.size):
        share |= _exchange(layout.parts[first : first + team.size], rows, dtype, team)
    return Share(layout, share, team.rank, team.size)


def _exchange(
    parts: Sequence[Sequence[Stretch]], rows: Mapping[str, Tensor], dtype: torch.dtype, team: Team
) -> dict[Stretch, Tensor]:
    """Sends this rank's rows of each part to the rank of that number; returns this rank's part, if there is one."""
    device = next(iter(rows.values())).device
    mine = parts[team.rank] if team.rank < len(parts) else ()
    sent = [[_row(rows, *piece, team).to(dtype) for piece in _pieces(part, team.rank, team.size)] for part in parts]
    sizes = [sum(row.nbytes for row in rows_of) for rows_of in sent] + [0] * (team.size - len(parts))
    coming = [_nbytes(mine, rank, team.size) for rank in range(team.size)]
    outgoing = [row.view(torch.uint8) for rows_of in sent for row in rows_of]
    received = torch.empty(sum(coming), dtype=torch.uint8, device=device)
    together = torch.cat(outgoing) if outgoing else torch.empty(0, dtype=torch.uint8, device=device)
    distributed.all_to_all_single(received, together, coming, sizes)
    made = {stretch: torch.empty(stretch.count, dtype=dtype, device=device) for stretch in mine}
    start = 0
    for rank in range(team.size):
        for stretch, first, end in _pieces(mine, rank, team.size):
            size = (end - first) * stretch.width
            target = made[stretch][first - stretch.start : end - stretch.start]
            target.view(torch.uint8).copy_(received[start : start + size])
            start += size
    return {stretch: flat(tensor) for stretch, tensor in made.items()}


def _pieces(part: Sequence[Stretch], rank: int, ranks: int) -> Iterator[tuple[Stretch, int, int]]:
    """Yields what `rank` holds of a part's stretches: the elements from, and up to, of the flattened tensor."""
    for stretch in part:
        first, end = _held(stretch.shape, rank, ranks)
        first, end = max(first, stretch.start), min(end, stretch.start + stretch.count)
        if first < end:
            yield stretch, first, end


def _held(shape: tuple[int, ...], rank: int, ranks: int) -> Held:
    """Returns the elements of a tensor that `rank` holds: FSDP gives all ranks but the last equally many rows."""
    rows, width = shape[0], math.prod(shape[1:])
    each = -(-rows // ranks)
    return min(rank * each, rows) * width, min((rank + 1) * each, rows) * width


def _row(rows: Mapping[str, Tensor], stretch: Stretch, first: int, end: int, team: Team) -> Tensor:
    """Returns the elements from `first` up to `end`, which this rank holds."""
    start, _ = _held(stretch.shape, team.rank, team.size)
    return rows[stretch.names[0]][first - start : end - start]


def _nbytes(part: Sequence[Stretch], rank: int, ranks: int) -> int:
    return sum((end - first) * stretch.width for stretch, first, end in _pieces(part, rank, ranks))
