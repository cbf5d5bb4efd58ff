"""Prepares tensors for a version and checks those read from one: unties them, and digests them."""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from echo_queue.weights.delta.codes import DTYPES, dtype_name, flat
from echo_queue.weights.gpu_lanes import reading
from echo_queue.weights.manifest import PIECE_BYTES, Manifest, TensorInfo, digest, tensor_digest

if TYPE_CHECKING:
    from torch import Tensor


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


def empty(info: TensorInfo) -> "Tensor":
    """Allocates an uninitialized tensor on the CPU."""
    import torch

    kind: torch.dtype = getattr(torch, DTYPES[info.dtype])
    return torch.empty(info.shape, dtype=kind)


def allocate(manifest: Manifest, before: "Mapping[str, Tensor] | None" = None) -> "dict[str, Tensor]":
    """Returns CPU tensors for a version by all their names; tied names share one, and no others do.

    A tensor of `before` that fits is used again, with its values; the others are uninitialized.
    """
    tensors: dict[str, Tensor] = {}
    free = {id(tensor): tensor for tensor in (before or {}).values()}  # names that were tied may be tied no more
    for info in manifest.tensors:
        here = free.pop(id((before or {}).get(info.name)), None)
        tensors[info.name] = here if here is not None and _fits(here, info) else empty(info)
    return tensors | {alias: tensors[owner] for alias, owner in manifest.aliases.items()}


def _fits(tensor: "Tensor", info: TensorInfo) -> bool:
    return (dtype_name(tensor), tuple(tensor.shape)) == (info.dtype, info.shape)


def digest_of(tensor: "Tensor", threads: int = 1) -> str:
    """Returns a tensor's digest as the manifest names it (`TensorInfo.digest`), computed by so many threads."""
    row = flat(tensor)
    step = PIECE_BYTES // row.element_size()
    pieces = [row[start : start + step] for start in range(0, max(1, len(row)), step)]
    lend = reading(pieces[:1])

    def digests(piece: "Tensor") -> str:
        with lend() as read:
            return digest(read(piece).view("u1").data)

    if min(threads, len(pieces)) == 1:
        return tensor_digest(map(digests, pieces))
    with ThreadPoolExecutor(threads, "digesting") as pool:
        return tensor_digest(pool.map(digests, pieces))


def matches(tensor: "Tensor", info: TensorInfo, threads: int = 1) -> bool:
    """Returns whether the tensor is, byte for byte, the one that the manifest describes."""
    return digest_of(tensor, threads) == info.digest
