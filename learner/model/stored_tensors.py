"""Tensors in safetensors files, of which a process reads the rows that it needs.

The hub's files of Qwen3-MoE and Mixtral hold each expert's matrices by themselves; transformers keeps the experts of a
layer in one tensor [experts, …], with the gate's rows before those of the up projection. `stack_experts` shows the
former as the latter, so that a row of the whole is one expert.
"""

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from safetensors import safe_open
from torch import Tensor

READ_BYTES = 16 << 20
"""So much of a file is mapped into memory at a time: what has been read of a mapped file stays in memory with it."""
EXPERT = re.compile(r"(.+)\.(?:mlp|block_sparse_moe)\.experts\.(\d+)\.(gate_proj|up_proj|down_proj|w1|w2|w3)\.weight")
MATRICES = {
    "gate_proj": ("gate_up_proj", 0), "up_proj": ("gate_up_proj", 1), "down_proj": ("down_proj", 0),
    "w1": ("gate_up_proj", 0), "w3": ("gate_up_proj", 1), "w2": ("down_proj", 0),
}  # fmt: skip
"""An expert's matrix in the files → the tensor that holds it, and its place in that tensor's rows."""
PLACES = {"gate_up_proj": 2, "down_proj": 1}
ROUTER = (".block_sparse_moe.gate.", ".mlp.gate.")
"""Mixtral's router, as the files name it and as transformers does."""


class Stored(Protocol):
    """A tensor in files."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the whole tensor."""

    def rows(self, first: int, count: int) -> Iterator[tuple[int, Tensor]]:
        """Yields `count` rows from row `first` on, some at a time, each time with the number of those before."""


@dataclass(frozen=True)
class StoredTensor:
    """A tensor as it lies in its file."""

    file: Path
    name: str
    shape: tuple[int, ...]

    def rows(self, first: int, count: int) -> Iterator[tuple[int, Tensor]]:
        step = max(1, READ_BYTES // max(1, 4 * math.prod(self.shape[1:])))
        for at in range(0, count, step):
            with safe_open(self.file, framework="pt") as file:
                yield at, file.get_slice(self.name)[first + at : first + min(at + step, count)]


@dataclass(frozen=True)
class StackedExperts:
    """Matrices of experts as one tensor. Each expert has the same ones, of the same shapes, one above the other."""

    experts: tuple[tuple[StoredTensor, ...], ...]

    @property
    def shape(self) -> tuple[int, ...]:
        matrices = self.experts[0]
        return len(self.experts), sum(matrix.shape[0] for matrix in matrices), *matrices[0].shape[1:]

    def rows(self, first: int, count: int) -> Iterator[tuple[int, Tensor]]:
        for at, expert in enumerate(self.experts[first : first + count]):
            parts = [rows for matrix in expert for _, rows in matrix.rows(0, matrix.shape[0])]
            yield at, torch.cat(parts).unsqueeze(0)


def stack_experts(tensors: Mapping[str, StoredTensor]) -> dict[str, Stored]:
    """Returns the tensors by the names that transformers has for them.

    Experts of which one lacks a matrix, or has it in another shape, keep their own names.
    """
    named: dict[str, Stored] = {}
    found = defaultdict[str, dict[tuple[int, int], str]](dict)
    for name, tensor in tensors.items():
        if matched := EXPERT.fullmatch(name):
            whole, place = MATRICES[matched[3]]
            found[f"{matched[1]}.mlp.experts.{whole}"][int(matched[2]), place] = name
        else:
            named[name.replace(*ROUTER)] = tensor
    for whole, names in found.items():
        places = PLACES[whole.rpartition(".")[2]]
        count = len(names) // places
        stacked = [[names.get((number, place)) for place in range(places)] for number in range(count)]
        experts = [tuple(tensors[name] for name in row if name) for row in stacked]
        complete = len(names) == sum(map(len, experts)) and len({tuple(m.shape for m in e) for e in experts}) == 1
        named |= (
            {whole: StackedExperts(tuple(experts))} if complete else {name: tensors[name] for name in names.values()}
        )
    return named
