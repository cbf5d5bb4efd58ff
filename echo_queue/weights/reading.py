"""Fetches a published version: manifest against the pointer's digest, every chunk against the manifest, then tensors.

Nothing unchecked is ever returned, and nothing is unpickled. A chunk that is wrong is asked for again, in case
the way here spoiled it, then it is one clear error.
"""

import math
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from echo_queue.errors import Problem, ServiceError
from echo_queue.records import Published
from echo_queue.store import ObjectStore, ShortObject
from echo_queue.weights.manifest import Chunk, Manifest, TensorPlace, digest

if TYPE_CHECKING:
    from torch import Tensor

STREAMS = 8
"""Ranges fetched at the same time."""
ATTEMPTS = 3
PAUSE_S = 0.1
DTYPES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64", "I32": "int32",
    "I16": "int16", "I8": "int8", "U8": "uint8", "BOOL": "bool",
}  # fmt: skip


class Damaged(ServiceError):
    """Stored bytes are not those that were published."""


def fetch(store: ObjectStore, published: Published) -> "dict[str, Tensor]":
    """The tensors of a version on the CPU, each of the shape and type it was published with.

    Tied names give the same tensor. Raises `Damaged`, or `MissingObject` if the version was pruned meanwhile.
    """
    manifest = read_manifest(store, published)
    memory = [bytearray(stored.size) for stored in manifest.objects]

    def bring(chunk: Chunk) -> None:
        data = _checked(manifest.objects[chunk.object].key, chunk.blake3, lambda: _read(store, manifest, chunk))
        memory[chunk.object][chunk.start : chunk.start + chunk.length] = data

    if len(manifest.chunks) == 1:
        bring(manifest.chunks[0])
    else:
        with ThreadPoolExecutor(STREAMS) as pool:
            for done in [pool.submit(bring, chunk) for chunk in manifest.chunks]:
                done.result()
    tensors = {place.name: _tensor(place, memory[place.object]) for place in manifest.tensors}
    return tensors | {name: tensors[owner] for name, owner in manifest.aliases.items()}


def read_manifest(store: ObjectStore, published: Published) -> Manifest:
    """The manifest that `published` points to, and no other."""
    key = published.manifest
    return Manifest.decode(_checked(key, published.digest, lambda: store.get(key)), key)


def _checked(key: str, expected: str, read: Callable[[], bytes]) -> bytes:
    what = ""
    for attempt in range(ATTEMPTS):
        if attempt:
            time.sleep(PAUSE_S * attempt)
        try:
            data = read()
        except ShortObject as error:
            what = error.problems[0].what
            continue
        if digest(data) == expected:
            return data
        what = "its bytes are not those that were published"
    raise Damaged(
        Problem(key, f"{what} ({ATTEMPTS} tries)", "the learner's next publication replaces it; check the disk")
    )


def _read(store: ObjectStore, manifest: Manifest, chunk: Chunk) -> bytes:
    stored = manifest.objects[chunk.object]
    if chunk.length == stored.size:
        return store.get(stored.key)
    return store.get_range(stored.key, chunk.start, chunk.length)


def _tensor(place: TensorPlace, memory: bytearray) -> "Tensor":
    """A view of `memory`, no copy."""
    import torch

    dtype: torch.dtype = getattr(torch, DTYPES[place.dtype])
    count = math.prod(place.shape)
    if count == 0:
        return torch.empty(place.shape, dtype=dtype)
    return torch.frombuffer(memory, dtype=dtype, count=count, offset=place.start).view(place.shape)
