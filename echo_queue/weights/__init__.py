"""Weights of published versions: immutable snapshots in the object store, manifest last, every byte checked.

The only package of `echo_queue` that uses torch, and only once tensors are published or fetched. What is latest
stands in Redis (`Queue.publish`); `latest` rebuilds it from the manifests. Deltas and peers will add kinds of
manifests and sources of chunks, and leave these functions as they are.
"""

from echo_queue.weights.manifest import Manifest
from echo_queue.weights.reading import Damaged, fetch
from echo_queue.weights.retention import latest, lineages, prune
from echo_queue.weights.snapshot import publish

__all__ = ["Damaged", "Manifest", "fetch", "latest", "lineages", "prune", "publish"]
