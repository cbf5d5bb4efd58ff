"""One node of the laboratory, a process of its own: `python -m benchmarks.laboratory.node SPEC`, see `processes`.

The node reports "ready", then obeys each line of its input. "fetch": it reports "half" when half of a route's chunks
have arrived, "whole" once all have and are verified, and then the digests of the files in its folder. "serve": it
fetches and stages a published version, as a worker does, and reports "serving". "follow": it does so with each version
from now on.
"""

import importlib
import logging
import os
import resource
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import orjson
from blake3 import blake3

from benchmarks.laboratory import baseline
from benchmarks.laboratory.events import dump_stacks_on_signal, report
from benchmarks.laboratory.member import Member, WatchingNode
from benchmarks.laboratory.origin import BUCKET, PLAIN_PORT, client, endpoint
from echo_queue.config import Weights
from echo_queue.connections.storage.object_store import ObjectStore
from echo_queue.queue import Caller
from echo_queue.records import Published, Version
from echo_queue.weights.manifest import Route

FLIP_EVERY = 4
"""A corrupting node spoils one of so many stretches of bytes that it sends."""


@dataclass(frozen=True)
class Spec:
    """The node's settings. `source`: the store alone, one web server at `origin` (the star), or the peer exchange."""

    name: str
    source: Literal["store", "star", "peers"]
    run: str
    origin: str
    address: str
    redis: str
    folder: str
    chunk_deadline_s: float
    region: str = "default"
    corrupts: bool = False
    serves: bool = False
    """True if the node will stage what it fetches, with the libraries for it loaded in advance, as in a worker."""


@dataclass(frozen=True)
class Fetched:
    store_bytes: int
    peer_bytes: int
    parts: Sequence[memoryview]


Fetch = Callable[[Route, Callable[[], None]], Fetched]
"""Fetches a route; calls the second argument when half of it has arrived, if that is known."""


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(relativeCreated)d %(name)s %(message)s")
    dump_stacks_on_signal()
    spec = Spec(**orjson.loads(Path(sys.argv[1]).read_bytes()))
    if spec.corrupts:
        corrupt()
    if spec.serves:
        importlib.import_module("torch")
    store = ObjectStore(endpoint(spec.origin), spec.run)
    if spec.source == "peers":
        member = member_of(spec, store)
        fetch, watcher = by_peers(member), WatchingNode(member, store)
    else:
        fetch, watcher = by_baseline(spec, store), None
    report("ready")
    for line in sys.stdin:
        order = orjson.loads(line)
        if order["do"] == "fetch":
            carry_out(fetch, Route.decode(order["route"].encode(), spec.name))
        elif order["do"] == "follow" and watcher is not None:
            watcher.follow(order["key"])
        elif watcher is not None:
            watcher.serve(Published(Version(*order["version"]), order["manifest"], order["digest"]), order["key"])


def carry_out(fetch: Fetch, route: Route) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF)
    report("begun")
    fetched = fetch(route, lambda: report("half"))
    at_s, used = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF)
    cpu_s = used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime
    figures = {"store_bytes": fetched.store_bytes, "peer_bytes": fetched.peer_bytes}
    report("whole", at_s, cpu_s=cpu_s, rss_mb=used.ru_maxrss / 1024, **figures)
    report("digests", digests=[blake3(part).hexdigest() for part in fetched.parts])


def by_baseline(spec: Spec, store: ObjectStore) -> Fetch:
    folder = Path(spec.folder)
    folder.mkdir(parents=True)

    def fetch(route: Route, half: Callable[[], None]) -> Fetched:
        if spec.source == "store":
            baseline.from_store(store, route.parts, folder)
        else:
            baseline.from_peer(spec.origin, PLAIN_PORT, f"{BUCKET}/{spec.run}", route.parts, folder)
        parts = [memoryview((folder / Path(part.key).name).read_bytes()) for part in route.parts]
        from_store, from_peer = (route.size, 0) if spec.source == "store" else (0, route.size)
        return Fetched(from_store, from_peer, parts)

    return fetch


def member_of(spec: Spec, store: ObjectStore) -> Member:
    settings = Weights(region=spec.region, peer_host=spec.address, chunk_deadline_s=spec.chunk_deadline_s)
    return Member(spec.name, Caller(client(Path(spec.redis)), spec.run), store, Path(spec.folder), settings)


def by_peers(member: Member) -> Fetch:
    def fetch(route: Route, half: Callable[[], None]) -> Fetched:
        threading.Thread(target=member.at_half, args=(route, half), daemon=True).start()
        fetched = member.fetch(route)
        return Fetched(fetched.store_bytes, fetched.peer_bytes, member.parts(route))

    return fetch


def corrupt() -> None:
    """Makes this process flip a bit in every few stretches of the files it sends, like a bad disk or a lying peer."""
    honest, turn = os.sendfile, iter(range(sys.maxsize))

    def sendfile(out_fd: int, in_fd: int, offset: int | None, count: int) -> int:
        if next(turn) % FLIP_EVERY != FLIP_EVERY - 1:
            return honest(out_fd, in_fd, offset, count)
        data = bytearray(os.pread(in_fd, count, offset or 0))
        data[len(data) // 2] ^= 1
        return os.write(out_fd, data)

    os.sendfile = sendfile


if __name__ == "__main__":
    main()
