"""Prepares tensors for a version and checks those read from one: unties, casts, copies into a file, digests."""

import mmap
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from echo_queue.weights.delta.codes import DTYPES, dtype_name, flat, on_host
from echo_queue.weights.manifest import PIECE_BYTES, TensorInfo, digest, tensor_digest

if TYPE_CHECKING:
    import torch
    from torch import Tensor

ALIGNMENT = 64


def untie(tensors: "Mapping[str, Tensor]") -> "tuple[dict[str, Tensor], dict[str, str]]":
    """Returns the tensors that own their memory, and for each further name the name of its owner."""
    first: dict[tuple[object, ...], str] = {}
    aliases: dict[str, str] = {}
    for name in sorted(tensors):
        tensor = tensors[name]
        memory = (tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
        owner = first.setdefault(memory, name) if tensor.numel() else name
        if owner != name:
            aliases[name] = owner
    return {name: tensors[name] for name in sorted(tensors) if name not in aliases}, aliases


class LazyTensors(Mapping[str, "Tensor"]):
    """A mapping that applies `change` to one tensor each time that it is read, and keeps none of the results."""

    def __init__(self, tensors: "Mapping[str, Tensor]", change: "Callable[[Tensor], Tensor]") -> None:
        self._tensors, self._change = tensors, change

    def __getitem__(self, name: str) -> "Tensor":
        return self._change(self._tensors[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)


def cast(tensors: "Mapping[str, Tensor]", dtype: str) -> LazyTensors:
    """Casts floating tensors to `dtype` ("float32" or "bfloat16"), each on its own device."""
    import torch

    kind: torch.dtype = getattr(torch, dtype)

    def change(tensor: "Tensor") -> "Tensor":
        plain = tensor.detach()
        return (plain.to(kind) if plain.is_floating_point() else plain).contiguous()

    return LazyTensors(tensors, change)


def moved(tensors: "Mapping[str, Tensor]", device: "torch.device") -> LazyTensors:
    """Moves each tensor to `device` when it is read."""
    return LazyTensors(tensors, lambda tensor: tensor.to(device))


def kept(folder: Path, tensors: "Mapping[str, Tensor]") -> "dict[str, Tensor]":
    """Copies tensors into a file in `folder`, mapped into memory: the kernel may drop pages and read them again.

    The file has no name: it disappears with the last of its tensors, or with this process.
    """
    import torch

    places: list[tuple[str, torch.dtype, tuple[int, ...], int]] = []
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder) as file:
        for name, tensor in tensors.items():
            start = file.seek(-(-file.tell() // ALIGNMENT) * ALIGNMENT)
            places.append((name, tensor.dtype, tuple(tensor.shape), start))
            file.write(on_host(flat(tensor)).data)
        file.truncate(max(file.tell(), 1))
        file.flush()
        memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)

    def view(kind: torch.dtype, shape: tuple[int, ...], start: int) -> "Tensor":
        count = torch.Size(shape).numel()
        if not count:
            return torch.empty(shape, dtype=kind)
        return torch.frombuffer(memory, dtype=kind, count=count, offset=start).view(shape)

    return {name: view(kind, shape, start) for name, kind, shape, start in places}


def described(tensors: "Mapping[str, Tensor]", pieces: "Mapping[str, Iterable[str]]") -> tuple[TensorInfo, ...]:
    """Describes tensors. `pieces`: the digests of each tensor's pieces, in order."""
    return tuple(
        TensorInfo(name, dtype_name(tensor), tuple(tensor.shape), tensor_digest(pieces[name]))
        for name, tensor in tensors.items()
    )


def empty(info: TensorInfo) -> "Tensor":
    """Allocates an uninitialized tensor on the CPU."""
    import torch

    kind: torch.dtype = getattr(torch, DTYPES[info.dtype])
    return torch.empty(info.shape, dtype=kind)


def digest_of(tensor: "Tensor") -> str:
    """Returns a tensor's digest as the manifest names it (`TensorInfo.digest`)."""
    row = flat(tensor)
    step = PIECE_BYTES // row.element_size()
    pieces = range(0, max(1, len(row)), step)
    return tensor_digest(digest(on_host(row[start : start + step]).view("u1").data) for start in pieces)


def matches(tensor: "Tensor", info: TensorInfo) -> bool:
    """Returns whether the tensor is, byte for byte, the one that the manifest describes."""
    return digest_of(tensor) == info.digest
