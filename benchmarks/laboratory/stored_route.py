"""The bytes that the laboratory broadcasts: a route of random bytes, put into the store by a process of its own.

`python -m benchmarks.laboratory.stored_route SPEC` is that process: it stores bytes on request and reports the route.
"""

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
from blake3 import blake3

from benchmarks.laboratory.events import dump_stacks_on_signal, report
from benchmarks.laboratory.origin import endpoint
from benchmarks.laboratory.processes import Node
from echo_queue.connections.storage.object_store import ObjectStore
from echo_queue.records import Version
from echo_queue.weights.manifest import Part, Route, digest, part_key

PART_BYTES = 64 << 20
ROOT = "0" * 64
"""A root of zeros, since random bytes are no tensors."""
LOADED_S = 120.0
MODULE = "benchmarks.laboratory.stored_route"


@dataclass(frozen=True)
class StoredRoute:
    """A stored route. `digests`: of each whole part, computed where it was made, to compare arrivals with."""

    route: Route
    digests: tuple[str, ...]


def upload(loader: Node, run: str, number: int, size: int, chunk_bytes: int) -> StoredRoute:
    """Makes `loader`, a process of this module, store `size` random bytes as version 1.`number` of `run`."""
    loader.order("load", run=run, number=number, size=size, chunk_bytes=chunk_bytes)
    said = loader.await_event("loaded", LOADED_S).figures
    return StoredRoute(Route.decode(said["route"].encode(), loader.name), tuple(said["digests"]))


def main() -> None:
    dump_stacks_on_signal()
    origin = orjson.loads(Path(sys.argv[1]).read_bytes())["origin"]
    report("ready")
    for line in sys.stdin:
        _upload(origin, **orjson.loads(line))


def _upload(origin: str, run: str, number: int, size: int, chunk_bytes: int, **order: Any) -> None:
    store, version = ObjectStore(endpoint(origin), run), Version(1, number)
    parts, digests = [], []
    for start in range(0, size, PART_BYTES):
        data = os.urandom(min(PART_BYTES, size - start))
        chunks = tuple(
            digest(memoryview(data)[place : place + chunk_bytes]) for place in range(0, len(data), chunk_bytes)
        )
        part = Part(part_key(version, None, chunks), len(data), chunk_bytes, chunks)
        store.put(part.key, data)
        parts.append(part)
        digests.append(blake3(data).hexdigest())
    report("loaded", route=Route(run, version, None, ROOT, None, tuple(parts)).encode().decode(), digests=digests)


if __name__ == "__main__":
    main()
