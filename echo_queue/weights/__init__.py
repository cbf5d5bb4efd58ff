"""Weights of published versions: immutable objects in the store, manifest last and signed, every byte checked.

The only package of `echo_queue` that uses torch, and only once tensors are published or fetched. What is latest
stands in Redis (`Queue.publish`); `latest` rebuilds it from the manifests.
"""

from echo_queue.weights.manifest import Manifest, Part, Route, TensorInfo
from echo_queue.weights.signing import Forged, Signer, Verifier

__all__ = ["Forged", "Manifest", "Part", "Route", "Signer", "TensorInfo", "Verifier"]
