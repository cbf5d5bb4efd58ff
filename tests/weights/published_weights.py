"""A learner's publications in a real store, and weights that drift as training makes them."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from echo_queue import config, weights
from echo_queue.connections.storage.object_store import ObjectStore
from echo_queue.records import Published, Version
from echo_queue.weights.manifest import Manifest
from echo_queue.weights.publisher import Announce
from echo_queue.weights.signatures import SignatureVerifier, Signer

torch.set_num_threads(1)

SIGNER = Signer(bytes(32))
OTHER = Signer(bytes(31) + b"\1")
VERIFIER = SignatureVerifier(SIGNER.public_key)
CHUNK_KEY = bytes(range(32))
SMALL = {"chunk_bytes": 4_096, "part_bytes": 40_000}
"""Sizes with which a toy model has several parts of several chunks."""


def model(seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    tensors = {f"layers.{number}": torch.randn(64, 64, generator=generator) * 0.02 for number in range(6)}
    embedding = torch.randn(100, 32, generator=generator) * 0.02
    return tensors | {
        "embedding": embedding,
        "head": embedding,
        "transposed": torch.randn(3, 5, generator=generator).t(),
        "steps": torch.arange(7),
        "nothing": torch.empty(0, 4),
        "scalar": torch.tensor(0.5),
        "odd": torch.tensor([float("nan"), float("inf"), -0.0, 0.0, -float("inf")]),
    }


def drifted(tensors: Mapping[str, Tensor], seed: int, share: float = 0.05, step: float = 1e-4) -> dict[str, Tensor]:
    """Returns the weights after another update, which moves `share` of the elements by about `step`; ties stay."""
    generator = torch.Generator().manual_seed(seed)
    moved: dict[int, Tensor] = {}
    for tensor in tensors.values():
        if id(tensor) not in moved and tensor.is_floating_point() and tensor.numel():
            touched = torch.rand(tensor.shape, generator=generator) < share
            moved[id(tensor)] = tensor + touched * step * torch.randn(tensor.shape, generator=generator)
    return {name: moved.get(id(tensor), tensor) for name, tensor in tensors.items()}


def history(updates: int, share: float = 0.05) -> list[dict[str, Tensor]]:
    versions = [model()]
    for number in range(updates):
        versions.append(drifted(versions[-1], number, share))
    return versions


def same(left: Mapping[str, Tensor], right: Mapping[str, Tensor], dtype: torch.dtype = torch.float32) -> bool:
    """Returns whether both are equal bit for bit, once the right one's floating tensors are of `dtype`."""
    return left.keys() == right.keys() and all(_bits(left[name]) == _bits(right[name], dtype) for name in left)


def _bits(tensor: Tensor, dtype: torch.dtype | None = None) -> tuple[Any, ...]:
    if dtype is not None and tensor.is_floating_point():
        tensor = tensor.to(dtype)
    return tensor.dtype, tuple(tensor.shape), bytes(tensor.contiguous().reshape(-1).view(torch.uint8).numpy())


def weight_publisher(
    store: ObjectStore, signer: Signer = SIGNER, run: str = "", announce: Announce = lambda *_: None, **settings: Any
) -> weights.WeightPublisher:
    chosen = config.Weights(**(SMALL | settings))
    run = run or store.prefix.removesuffix("/")
    chunk_key = CHUNK_KEY if chosen.encrypt else None
    return weights.WeightPublisher(store, run, signer, chosen, chunk_key=chunk_key, announce=announce)


FIRST = Version(0, 0)


def publish(store: ObjectStore, tensors: Mapping[str, Tensor], version: Version = FIRST, **settings: Any) -> Published:
    """Publishes `tensors` as the first version of its lineage."""
    return weight_publisher(store, **settings).publish(version, tensors, "float32")


def publish_all(
    store: ObjectStore, versions: list[dict[str, Tensor]], lineage: int = 0, **settings: Any
) -> list[Published]:
    """Publishes a lineage with all its further routes."""
    learner, published = weight_publisher(store, **settings), []
    for number, tensors in enumerate(versions):
        published.append(learner.publish(Version(lineage, number), tensors, "float32"))
        learner.further(Version(lineage, number))
    return published


def fetch(store: ObjectStore, published: Published) -> dict[str, Tensor]:
    return weights.fetch(store, published, VERIFIER, CHUNK_KEY)


def manifest_of(store: ObjectStore, published: Published) -> Manifest:
    return weights.read_manifest(store, published, VERIFIER)
