"""Checks the server's parameters against the checkpoint, as far as their checksums can be computed here.

The server reports the SHA-256 of each parameter as it lies in its memory. That can be computed here if the parameter is
a tensor of the checkpoint, several of them one after another, or one padded to whole blocks of a vocabulary. It cannot
for parameters that are split over devices, packed or quantised.
"""

from collections.abc import Callable, Mapping
from hashlib import sha256

from torch import Tensor

from echo_queue.weights.delta.codes import flat, on_host

FUSED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
"""Projections that vLLM stores in one parameter, in order."""
PADDED_TO = 64
"""vLLM pads the rows of an embedding to a multiple of this."""

Read = Callable[[str], Tensor]


class Checksums:
    """`coverage`: the parameters that can be checked, by the name of each tensor that they hold. `read` returns the
    tensors of the checkpoint that the server loaded last."""

    def __init__(self, reported: Mapping[str, str], owner: Mapping[str, str], read: Read) -> None:
        """`reported`: the server's checksums while it has the tensors that `read` returns."""
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
        """Returns whether every parameter that can be checked and holds the tensor `name` has the bytes of `read`."""
        return all(
            reported.get(parameter) in _digests([self._read(part) for part in self._parts[parameter]])
            for parameter in self.coverage.get(self._owner[name], ())
        )


def _parts(parameter: str, owner: Mapping[str, str]) -> tuple[str, ...]:
    """Returns the names of the tensors that a parameter should consist of; empty if unknown."""
    if parameter in owner:
        return (owner[parameter],)
    path, _, leaf = parameter.rpartition(".")
    parent, _, module = path.rpartition(".")
    names = [f"{parent}.{part}.{leaf}" for part in FUSED.get(module, ())]
    return tuple(owner[name] for name in names) if names and all(name in owner for name in names) else ()


def _digests(parts: list[Tensor]) -> set[str]:
    """Returns the digests of the parts one after another: as they are, and padded by rows of zeros to whole blocks."""
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
