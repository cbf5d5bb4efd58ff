"""A tensor as the unsigned integers that its elements' bits are: what differences are taken of, exactly.

Differences wrap around (two's complement), so that NaN payloads, infinities and signed zeros are numbers like others.
"""

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor

Codes: TypeAlias = NDArray[Any]
"""One row of unsigned integers of 1, 2, 4 or 8 bytes, unless another shape is said."""

DTYPES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2", "I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8", "U8": "uint8",
    "BOOL": "bool",
}  # fmt: skip
"""Types by their name in safetensors, and in torch."""
SIGNED = {1: "uint8", 2: "int16", 4: "int32", 8: "int64"}
"""By an element's width in bytes: the integers of torch that hold its bits."""


def dtype_name(tensor: "Tensor") -> str:
    """Raises `ValueError` for a type that the format has no name for."""
    name = str(tensor.dtype).removeprefix("torch.")
    for short, known in DTYPES.items():
        if known == name:
            return short
    raise ValueError(f"tensors of {name} cannot be published")


def flat(tensor: "Tensor") -> "Tensor":
    """The elements' bits as one row of integers, on the tensor's device; a view if the tensor is contiguous."""
    import torch

    row = tensor.detach().contiguous().reshape(-1)
    integers: torch.dtype = getattr(torch, SIGNED[row.element_size()])
    return row.view(integers)


def on_host(row: "Tensor") -> Codes:
    """`flat` integers as codes; a view where they are on the CPU."""
    values: NDArray[Any] = row.cpu().numpy()
    return values.view(f"u{values.itemsize}")


def integers(codes: Codes) -> "Tensor":
    """The same memory as a tensor of integers, as `flat` gives them."""
    import torch

    return torch.from_numpy(codes.view(SIGNED[codes.itemsize]))


def zigzag(differences: Codes) -> Codes:
    """0, −1, 1, −2, 2 … as 0, 1, 2, 3, 4 …"""
    sign = differences >> (differences.itemsize * 8 - 1)
    np.negative(sign, out=sign)
    doubled = differences << 1
    doubled ^= sign
    return doubled


def unzigzag(values: Codes) -> Codes:
    sign = values & 1
    np.negative(sign, out=sign)
    sign ^= values >> 1
    return sign


def split(codes: Codes) -> list[NDArray[np.uint8]]:
    """One plane per byte of the codes, the lowest first."""
    columns = codes.view(np.uint8).reshape(len(codes), codes.itemsize)
    return [np.ascontiguousarray(columns[:, place]) for place in range(codes.itemsize)]


def join(planes: list[NDArray[np.uint8]]) -> Codes:
    columns = np.empty((len(planes[0]), len(planes)), np.uint8)
    for place, plane in enumerate(planes):
        columns[:, place] = plane
    return columns.reshape(-1).view(f"u{len(planes)}")


def exponents_first(codes: Codes) -> Codes:
    """Rotated left by one bit: the sign goes last, and the exponent of bf16 and fp32 fills the highest byte."""
    return (codes << 1) | (codes >> (codes.itemsize * 8 - 1))


def sign_first(codes: Codes) -> Codes:
    return (codes >> 1) | (codes << (codes.itemsize * 8 - 1))
