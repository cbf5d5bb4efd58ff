"""Published LoRA adapters (arXiv 2106.09685), and the one way to merge them into the weights of the base model.

- Each adapted matrix `NAME.weight` of the base model has two published tensors: `NAME.lora_A.weight` [rank, in] and
  `NAME.lora_B.weight` [out, rank], which are PEFT's names.
- Beside them a version has the tensor `lora`, the bytes of a `LoraDescription`: the scaling, and the digest of each
  tensor of the base model. It is signed as every published tensor is.
- The learner computes with the merged weights as workers do, by the same function (`merged_weight`).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import orjson

from echo_queue.weights.manifest import TensorInfo, canonical

if TYPE_CHECKING:
    from torch import Tensor

A, B = ".lora_A.weight", ".lora_B.weight"
WEIGHT = ".weight"
DESCRIPTION = "lora"
BLOCK_ELEMENTS = {"cpu": 1 << 20, "cuda": 1 << 24}
"""Elements that are merged at a time, by the kind of device: a CPU is twice as fast where they fit into its cache."""


@dataclass(frozen=True)
class LoraDescription:
    """The base model to which adapters belong, and their scaling.

    `base`: its tensors in the type that is served, tied ones once.
    """

    scaling: float
    base: tuple[TensorInfo, ...]

    def encode(self) -> bytes:
        return canonical({"scaling": self.scaling, "base": [info.body() for info in self.base]})

    @classmethod
    def decode(cls, data: bytes) -> "LoraDescription":
        """Decodes what `encode` made. Raises `ValueError` for anything else."""
        match orjson.loads(data):
            case {"scaling": float(scaling), "base": [*listed]}:
                found = cls(scaling, tuple(map(_info, listed)))
                if found.encode() == data:
                    return found
        raise ValueError("it is no description of LoRA adapters")

    def tensor(self) -> "Tensor":
        """Returns the encoded description as a tensor, as which it is published and saved."""
        import torch

        return torch.frombuffer(bytearray(self.encode()), dtype=torch.uint8)

    @classmethod
    def of(cls, tensor: "Tensor") -> "LoraDescription":
        """Decodes what `tensor` made. Raises `ValueError` for anything else."""
        return cls.decode(tensor.cpu().numpy().tobytes())

    def differing(self, other: "LoraDescription") -> str | None:
        """Returns the name of a tensor that the two base models do not share; None if they are the same model."""
        mine, theirs = ({info.name: info for info in one.base} for one in (self, other))
        return next((name for name in sorted(mine | theirs) if mine.get(name) != theirs.get(name)), None)


def _info(listed: object) -> TensorInfo:
    match listed:
        case {"name": str(name), "dtype": str(dtype), "shape": [*shape], "digest": str(digest)}:
            return TensorInfo(name, dtype, tuple(shape), digest)
    raise ValueError("it lists what is no tensor")


def adapted(names: Iterable[str]) -> list[str]:
    """Returns the names of the base model's matrices to which the adapters among the tensors `names` belong."""
    return sorted(name.removesuffix(A) + WEIGHT for name in names if name.endswith(A))


def factors(tensors: "Mapping[str, Tensor]", name: str) -> "tuple[Tensor, Tensor]":
    """Returns A [rank, in] and B [out, rank] of the matrix `name`."""
    stem = name.removesuffix(WEIGHT)
    return tensors[stem + A], tensors[stem + B]


def merged_weight(base: "Tensor", a: "Tensor", b: "Tensor", scaling: float, out: "Tensor | None" = None) -> "Tensor":
    """Returns base + scaling · B · A in the type of `base`, computed in float32 at least and rounded once.

    `base` [out, in]; `a` [rank, in] and `b` [out, rank] are first rounded to the type of `base`, as they are published.
    The result is written into `out` if that is given.
    """
    import torch

    wide = torch.promote_types(base.dtype, torch.float32)
    found = torch.empty_like(base) if out is None else out
    right = a.to(base.dtype).to(wide)
    rows = max(1, BLOCK_ELEMENTS[base.device.type] // max(1, base.shape[1]))
    for first in range(0, len(base), rows):
        left = b[first : first + rows].to(base.dtype).to(wide)
        found[first : first + rows] = torch.addmm(base[first : first + rows].to(wide), left, right, alpha=scaling)
    return found
