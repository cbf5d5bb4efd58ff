"""A learner's publications without a learner, from real weight publishers to a real store, and a worker's check."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from echo_queue.config import Weights
from echo_queue.connections.storage.object_store import ObjectStore
from echo_queue.records import Published, Version
from echo_queue.weights import Manifest, Route, SignatureVerifier, Signer, WeightPublisher, read_manifest
from echo_queue.weights.reader import fetch_parts
from echo_queue.weights.tensors import digest_of

SMALL = {"part_bytes": 20_000, "chunk_bytes": 4_096, "anchor_every": 4}


class Bytes:
    """A part that has arrived."""

    def __init__(self, data: memoryview) -> None:
        self._data = data

    def memory(self) -> memoryview:
        return self._data


class Publications:
    """Publishes `tensors`, which drift a little with every version."""

    def __init__(
        self,
        store: ObjectStore,
        tensors: Mapping[str, Tensor],
        dtype: str = "float32",
        **settings: object,
    ) -> None:
        self.store = store
        self.signer = Signer.generate()
        self.verifier = SignatureVerifier(self.signer.public_key)
        self.tensors = dict(tensors)
        self.dtype = dtype
        self.settings = Weights.model_validate(SMALL | settings)
        self.chunk_key = self.signer.secret("chunks") if self.settings.encrypt else None
        self._weight_publisher = WeightPublisher(
            store, store.prefix[:-1], self.signer, self.settings, chunk_key=self.chunk_key
        )
        self._generator = torch.Generator().manual_seed(0)

    def publish(self, number: int, lineage: int = 1) -> Published:
        version = Version(lineage, number)
        published = self._weight_publisher.publish(version, self.tensors, self.dtype)
        self._weight_publisher.further(version)
        return published

    def drift(self, share: float = 0.05) -> None:
        """Changes the tensors a little; tied tensors stay tied."""
        for tensor in {tensor.data_ptr(): tensor for tensor in self.tensors.values()}.values():
            if tensor.is_floating_point():
                changes = torch.rand(tensor.shape, generator=self._generator) < share
                tensor.copy_(torch.where(changes, tensor * 1.01 + 1e-3, tensor))

    def manifest(self, published: Published) -> Manifest:
        return read_manifest(self.store, published, self.verifier)

    def parts(self, routes: Sequence[Route]) -> dict[str, Bytes]:
        return {part.key: Bytes(data) for route in routes for part, data in fetch_parts(self.store, route)}


def model(seed: int = 0) -> dict[str, Tensor]:
    """Makes tensors, with tied, scalar, empty and integer ones among them."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {f"layers.{number}": torch.randn(64, 48, generator=generator) for number in range(6)}
    embedding = torch.randn(100, 32, generator=generator)
    return tensors | {
        "embedding": embedding,
        "head": embedding,
        "steps": torch.arange(7),
        "nothing": torch.empty(0, 4),
        "scalar": torch.tensor(0.5),
    }


def holds(tensors: Mapping[str, Tensor], manifest: Manifest) -> bool:
    """Returns whether each of a version's tensors has its digest, under all of its names."""
    names = {info.name: info.digest for info in manifest.tensors}
    names |= {alias: names[owner] for alias, owner in manifest.aliases.items()}
    return names.keys() == tensors.keys() and all(digest_of(tensors[name]) == names[name] for name in names)
