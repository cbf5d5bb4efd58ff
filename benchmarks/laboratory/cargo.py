"""What the laboratory broadcasts: a route of random bytes, laid out as the store keeps it."""

import os
from dataclasses import dataclass
from pathlib import Path

from blake3 import blake3

from benchmarks.laboratory.origin import BUCKET
from echo_queue.records import Version
from echo_queue.weights.manifest import Part, Route, digest, part_key

PART_BYTES = 64 << 20
ROOT = "0" * 64
"""Random bytes make no tensors."""


@dataclass(frozen=True)
class Way:
    """From `base` (None: from nothing) to `version`."""

    version: Version
    base: Version | None = None


@dataclass(frozen=True)
class Cargo:
    """`digests`: of each part, whole, computed where it was made; what arrives is compared with them."""

    route: Route
    digests: tuple[str, ...]


def load(objects: Path, run: str, way: Way, size: int, chunk_bytes: int) -> Cargo:
    """Stores `size` random bytes as the parts of a route below `objects`, the S3 server's folder."""
    sizes = [min(PART_BYTES, size - start) for start in range(0, size, PART_BYTES)]
    parts, digests = [], []
    for each in sizes:
        data = memoryview(os.urandom(each))
        chunks = tuple(digest(data[start : start + chunk_bytes]) for start in range(0, each, chunk_bytes))
        part = Part(part_key(way.version, way.base, chunks), each, chunk_bytes, chunks)
        path = objects / BUCKET / run / part.key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        parts.append(part)
        digests.append(blake3(data).hexdigest())
    return Cargo(Route(run, way.version, way.base, ROOT, ROOT if way.base else None, tuple(parts)), tuple(digests))
