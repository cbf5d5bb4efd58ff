"""The rows of a tensor that one rank holds, which checkpoints and the copies of a state are made of."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Piece:
    """Consecutive rows of a tensor of shape `shape`: `tensor` holds the rows from `first` on. A scalar is one row."""

    name: str
    shape: tuple[int, ...]
    first: int
    tensor: Tensor

    @property
    def rows(self) -> int:
        return rows_of(tuple(self.tensor.shape))

    @property
    def size(self) -> int:
        """Number of bytes."""
        return self.rows * row_bytes(self.shape, self.tensor.dtype)

    def part(self, first: int, rows: int) -> Tensor:
        """Returns a view of `rows` rows from row `first` of the whole tensor on."""
        return self.tensor[first - self.first : first - self.first + rows] if self.shape else self.tensor


def rows_of(shape: tuple[int, ...]) -> int:
    return shape[0] if shape else 1


def row_bytes(shape: tuple[int, ...], dtype: torch.dtype) -> int:
    return math.prod(shape[1:]) * dtype.itemsize
