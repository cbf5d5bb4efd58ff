"""The baselines' client: a node that reads every part from one source and checks every chunk, as workers do."""

import http.client
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from echo_queue.connections.storage.object_store import ObjectStore
from echo_queue.errors import Problem, ServiceError
from echo_queue.weights.manifest import Part, digest

TIMEOUT_S = 120.0
STRETCH_BYTES = 4 << 20
AHEAD = 2
"""Ranges requested while one is being checked, so that the link is never idle."""


def from_store(store: ObjectStore, parts: Sequence[Part], folder: Path) -> None:
    """Reads every part by ranged reads of the S3 server."""
    with ThreadPoolExecutor(AHEAD) as pool:
        for part in parts:
            starts = range(0, part.size, STRETCH_BYTES)
            lengths = [min(STRETCH_BYTES, part.size - start) for start in starts]
            keys = [part.key] * len(lengths)
            _keep(part, pool.map(store.get_range, keys, starts, lengths), folder)


def from_peer(address: str, port: int, prefix: str, parts: Sequence[Part], folder: Path) -> None:
    """Reads every part as one answer of a web server."""
    connection = http.client.HTTPConnection(address, port, timeout=TIMEOUT_S)
    for part in parts:
        connection.request("GET", f"/{prefix}/{part.key}")
        answer = connection.getresponse()
        if answer.status != http.client.OK:
            raise ServiceError(Problem(part.key, f"{address} answers {answer.status}", "check its log"))
        _keep(part, _chunks(answer, part), folder)
    connection.close()


def _chunks(answer: http.client.HTTPResponse, part: Part) -> Iterator[bytes]:
    while data := answer.read(part.chunk_bytes):
        yield data


def _keep(part: Part, stretches: Iterator[bytes], folder: Path) -> None:
    index = 0
    with (folder / Path(part.key).name).open("wb") as file:
        for stretch in stretches:
            for start in range(0, len(stretch), part.chunk_bytes):
                chunk = memoryview(stretch)[start : start + part.chunk_bytes]
                if digest(chunk) != part.chunks[index]:
                    raise ServiceError(
                        Problem(part.key, f"chunk {index} does not match its digest", "check its source")
                    )
                file.write(chunk)
                index += 1
