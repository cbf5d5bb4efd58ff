"""Publishes one immutable snapshot: objects first, the manifest last and once.

Readers see a version whole or not at all. The same version published again with the same tensors changes
nothing; with others it is a `FencedError`, because only another learner can have done it.
"""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import orjson
from blake3 import blake3

from echo_queue.errors import FencedError, Problem
from echo_queue.records import Published, Version
from echo_queue.store import ObjectStore
from echo_queue.weights.manifest import Chunk, Manifest, Object, TensorPlace, digest, folder, manifest_key

if TYPE_CHECKING:
    from torch import Tensor

CHUNK_BYTES = 8 << 20
OBJECT_BYTES = 512 << 20
"""Tensors are gathered into objects of at most this size, unless one alone is larger."""


def publish(store: ObjectStore, version: Version, tensors: "Mapping[str, Tensor]", dtype: str) -> Published:
    """Stores `tensors` (floating ones as `dtype`: "float32" or "bfloat16") and returns the pointer to them.

    Raises `FencedError` if other weights were published as this version, `ServiceError` if the store fails.
    """
    distinct, aliases = _untie(tensors)
    objects: list[Object] = []
    chunks: list[Chunk] = []
    places: list[TensorPlace] = []
    for group in _gathered(_cast(distinct, dtype)):
        number, data = len(objects), _safetensors(group)
        found = list(_chunks(number, data))
        root = blake3("".join(chunk.blake3 for chunk in found).encode()).hexdigest()
        objects.append(Object(f"{folder(version)}{root[:32]}.safetensors", len(data)))
        chunks += found
        places += _places(number, data)
        store.put(objects[-1].key, data)
    manifest = Manifest(version.lineage, version.number, tuple(objects), tuple(chunks), tuple(places), aliases).encode()
    key = manifest_key(version)
    if not store.put(key, manifest, once=True):
        what = "other weights were published as this version: another learner trains this run"
        raise FencedError(Problem(key, what, "let only one learner run"))
    return Published(version, key, digest(manifest))


def _untie(tensors: "Mapping[str, Tensor]") -> "tuple[dict[str, Tensor], dict[str, str]]":
    """Tensors with a memory of their own, and the other names of each."""
    first: dict[tuple[object, ...], str] = {}
    aliases: dict[str, str] = {}
    for name in sorted(tensors):
        tensor = tensors[name]
        memory = (tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
        owner = first.setdefault(memory, name) if tensor.numel() else name
        if owner != name:
            aliases[name] = owner
    return {name: tensors[name] for name in sorted(tensors) if name not in aliases}, aliases


def _cast(tensors: "Mapping[str, Tensor]", dtype: str) -> "Iterator[tuple[str, Tensor]]":
    import torch

    target: torch.dtype = getattr(torch, dtype)
    for name, tensor in tensors.items():
        plain = tensor.detach().to("cpu", target if tensor.is_floating_point() else None)
        yield name, plain.contiguous()


def _gathered(tensors: "Iterator[tuple[str, Tensor]]") -> "Iterator[dict[str, Tensor]]":
    """Groups of at most `OBJECT_BYTES`, made one at a time so that only one is held in memory."""
    group: dict[str, Tensor] = {}
    size = 0
    for name, tensor in tensors:
        if group and size + tensor.nbytes > OBJECT_BYTES:
            yield group
            group, size = {}, 0
        group[name] = tensor
        size += tensor.nbytes
    if group:
        yield group


def _safetensors(tensors: "Mapping[str, Tensor]") -> bytes:
    from safetensors.torch import save

    return save(dict(tensors))


def _places(number: int, data: bytes) -> Iterator[TensorPlace]:
    """Where a safetensors file holds what: 8 bytes of header length, the header, then the tensors."""
    header_end = 8 + int.from_bytes(data[:8], "little")
    for name, entry in orjson.loads(data[8:header_end]).items():
        if name != "__metadata__":
            yield TensorPlace(
                name, entry["dtype"], tuple(entry["shape"]), number, header_end + entry["data_offsets"][0]
            )


def _chunks(number: int, data: bytes) -> Iterator[Chunk]:
    view = memoryview(data)
    for start in range(0, len(data), CHUNK_BYTES):
        part = view[start : start + CHUNK_BYTES]
        yield Chunk(number, start, len(part), digest(part))
