"""The state of policies, put together from the pieces that ranks hold, and given back to them."""

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from learner.model.pieces import Piece
from learner.model.policy import Policy


def state_of(policy: Policy) -> dict[str, Tensor]:
    """Copies the state of a policy that one process holds."""
    return put_together(policy.pieces())


def put_together(pieces: Iterable[Piece]) -> dict[str, Tensor]:
    """Copies whole tensors from the pieces of all ranks. Every row must be in exactly one piece."""
    whole: dict[str, Tensor] = {}
    rows: dict[str, int] = {}
    for piece in pieces:
        found = whole.setdefault(piece.name, torch.zeros(piece.shape, dtype=piece.tensor.dtype))
        (found[piece.first : piece.first + piece.rows] if piece.shape else found).copy_(piece.tensor.cpu())
        rows[piece.name] = rows.get(piece.name, 0) + piece.rows
    assert rows == {name: len(tensor) if tensor.ndim else 1 for name, tensor in whole.items()}
    return whole


def restore(policy: Policy, state: Mapping[str, Tensor]) -> None:
    """Gives whole tensors to the ranks that hold rows of them."""

    def read(pieces: Sequence[Piece]) -> None:
        for piece in pieces:
            stored = state[piece.name]
            piece.tensor.copy_(stored[piece.first : piece.first + piece.rows] if piece.shape else stored)

    policy.restore({name: tuple(tensor.shape) for name, tensor in state.items()}, read)
