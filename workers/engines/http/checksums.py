"""Which of the server's parameters can be told from the checkpoint, and whether they are what it says.

The server reports the SHA-256 of each parameter as it lies in its memory. That can be computed here where it holds the
tensor of the checkpoint, or several of them one after another, or one that is padded to whole blocks of a vocabulary.
What is split over devices, packed or quantised cannot.
"""

from collections.abc import Callable, Mapping
from hashlib import sha256

from torch import Tensor

from echo_queue.weights.delta.codes import flat, on_host

FUSED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
"""What vLLM stores in one, in order."""
PADDED_TO = 64
"""Rows of an embedding, in vLLM."""

Read = Callable[[str], Tensor]


class Checksums:
    """`coverage`: the parameters that can be checked, by the name of a tensor that they hold. `read` gives the tensors
    of the checkpoint that the server was told to load last."""

    def __init__(self, reported: Mapping[str, str], owner: Mapping[str, str], read: Read) -> None:
        """`reported` while the server has what `read` gives."""
        self._owner, self._read = owner, read
        self._parts: dict[str, tuple[str, ...]] = {}
        for parameter, digest in reported.items():
            parts = _parts(parameter.rpartition(":")[2], owner)
            if parts and digest in _digests([read(part) for part in parts]):
                self._parts[parameter] = parts
        self.coverage: dict[str, list[str]] = {}
        for parameter, parts in self._parts.items():
            for part in parts:
                self.coverage.setdefault(part, []).append(parameter)

    def agree(self, reported: Mapping[str, str], name: str) -> bool:
        """Whether every parameter that can be checked, and holds the tensor `name`, is what `read` gives."""
        return all(
            reported.get(parameter) in _digests([self._read(part) for part in self._parts[parameter]])
            for parameter in self.coverage.get(self._owner[name], ())
        )


def _parts(parameter: str, owner: Mapping[str, str]) -> tuple[str, ...]:
    """The tensors of the checkpoint that a parameter should be made of; empty if nobody knows."""
    if parameter in owner:
        return (owner[parameter],)
    path, _, leaf = parameter.rpartition(".")
    parent, _, module = path.rpartition(".")
    names = [f"{parent}.{part}.{leaf}" for part in FUSED.get(module, ())]
    return tuple(owner[name] for name in names) if names and all(name in owner for name in names) else ()


def _digests(parts: list[Tensor]) -> set[str]:
    """Of the parts one after another: as they are, and with rows of zeros up to a whole block."""
    rows = sum(len(part) for part in parts)
    padding = parts[0].new_zeros((-rows % PADDED_TO, *parts[0].shape[1:]))
    plain = sha256()
    for part in parts:
        plain.update(_bytes(part))
    padded = plain.copy()
    padded.update(_bytes(padding))
    return {plain.hexdigest(), padded.hexdigest()}


def _bytes(tensor: Tensor) -> memoryview:
    return on_host(flat(tensor)).view("u1").data
