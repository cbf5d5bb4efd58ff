"""Views a tensor as codes, the unsigned integers that its elements' bits are: differences of codes are exact.

Differences wrap around (two's complement), so that NaN payloads, infinities and signed zeros are ordinary numbers.
"""

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from echo_queue.weights.delta.compiled import U, compiled
from echo_queue.weights.delta.streams import Bytes, MalformedStream

if TYPE_CHECKING:
    from torch import Tensor

Codes: TypeAlias = NDArray[Any]
"""One row of unsigned integers of 1, 2, 4 or 8 bytes, unless another shape is stated."""

DTYPES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2", "I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8", "U8": "uint8",
    "BOOL": "bool",
}  # fmt: skip
"""The name of each type in safetensors → its name in torch."""
SIGNED = {1: "uint8", 2: "int16", 4: "int32", 8: "int64"}
"""An element's width in bytes → the integers of torch that hold its bits."""


def dtype_name(tensor: "Tensor") -> str:
    """Returns the type's name in the format. Raises `ValueError` for a type that has none."""
    name = str(tensor.dtype).removeprefix("torch.")
    for short, known in DTYPES.items():
        if known == name:
            return short
    raise ValueError(f"tensors of {name} cannot be published")


def digest(codes: Codes) -> str:
    """Returns the BLAKE3 digest of the bytes, in hex."""
    return blake3(codes.view(np.uint8).data).hexdigest()


def flat(tensor: "Tensor") -> "Tensor":
    """Returns the elements' bits as one row of integers, on the tensor's device; a view if the tensor is contiguous."""
    import torch

    row = tensor.detach().contiguous().reshape(-1)
    integers: torch.dtype = getattr(torch, SIGNED[row.element_size()])
    return row.view(integers)


def on_host(row: "Tensor") -> Codes:
    """Returns `flat` integers as codes; a view where they are on the CPU."""
    values: NDArray[Any] = row.cpu().numpy()
    return values.view(f"u{values.itemsize}")


def zigzag(differences: Codes) -> Codes:
    """Maps 0, −1, 1, −2, 2 … to 0, 1, 2, 3, 4 …"""
    values = np.empty_like(differences)
    _zigzag(differences.view(f"i{differences.itemsize}"), values)
    return values


def unzigzag(values: Codes) -> Codes:
    """Undoes `zigzag` in place."""
    _unzigzag(values)
    return values


def split(codes: Codes) -> list[Bytes]:
    """Splits codes into one plane per byte, the lowest first."""
    planes = np.empty((codes.itemsize, len(codes)), np.uint8)
    _split(codes, planes)
    return list(planes)


def join(planes: list[Bytes]) -> Codes:
    """Undoes `split`. Raises `MalformedStream` for planes of different lengths."""
    if any(len(plane) != len(planes[0]) for plane in planes):
        raise MalformedStream("planes of different lengths")
    codes = np.zeros(len(planes[0]), f"u{len(planes)}")
    for place, plane in enumerate(planes):
        _add_plane(plane, U(8 * place), codes)
    return codes


def exponents_first(codes: Codes) -> Codes:
    """Rotates codes left by one bit: the sign becomes the lowest, the exponent of bf16 and fp32 the highest byte."""
    return (codes << 1) | (codes >> (codes.itemsize * 8 - 1))


def sign_first(codes: Codes) -> Codes:
    """Undoes `exponents_first`."""
    return (codes >> 1) | (codes << (codes.itemsize * 8 - 1))


@compiled
def _zigzag(differences: Codes, values: Codes) -> None:
    sign = 8 * differences.itemsize - 1
    for place in range(U(len(differences))):
        difference = differences[place]
        values[place] = (difference << 1) ^ (difference >> sign)


@compiled
def _unzigzag(values: Codes) -> None:
    for place in range(U(len(values))):
        value = U(values[place])
        values[place] = (value >> U(1)) ^ (U(0) - (value & U(1)))


@compiled
def _split(codes: Codes, planes: Codes) -> None:
    for place in range(U(codes.itemsize)):
        plane, shift = planes[place], U(8) * place
        for index in range(U(len(codes))):
            plane[index] = codes[index] >> shift


@compiled
def _add_plane(plane: Bytes, shift: U, codes: Codes) -> None:
    for place in range(U(len(codes))):
        codes[place] |= U(plane[place]) << shift
