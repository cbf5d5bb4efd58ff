"""Weights of published versions: immutable objects in the store, manifest last and signed, every byte checked.

This is the only package of `echo_queue` that uses torch, and only once tensors are published or fetched; listing what
the store holds needs neither torch nor the codec. Redis holds the pointer to the latest version
(`LearnerQueue.publish`); `latest` rebuilds it from the manifests. The formats are in docs/weights.md.
"""

from typing import TYPE_CHECKING, Any

from echo_queue.weights.manifest import Announcement, Manifest, Part, Route, TensorInfo
from echo_queue.weights.reader import Damaged, fetch, find_path, read_manifest
from echo_queue.weights.retention import latest, lineages, prune
from echo_queue.weights.signatures import Forged, SignatureVerifier, Signer

if TYPE_CHECKING:
    from echo_queue.weights.publisher import WeightPublisher

__all__ = [
    "Announcement",
    "Damaged",
    "Forged",
    "Manifest",
    "Part",
    "Route",
    "SignatureVerifier",
    "Signer",
    "TensorInfo",
    "WeightPublisher",
    "fetch",
    "find_path",
    "latest",
    "lineages",
    "prune",
    "read_manifest",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Imports `WeightPublisher` on first use: it comes with the codec, which takes seconds to import."""
    if name != "WeightPublisher":
        raise AttributeError(name)
    from echo_queue.weights.publisher import WeightPublisher

    return WeightPublisher
