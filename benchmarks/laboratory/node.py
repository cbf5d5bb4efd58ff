"""One node of the laboratory, a process of its own: `python -m benchmarks.laboratory.node SPEC`, started by `crew`.

Says "ready", then does what each line on its input tells it, and says when: "whole" once every part of a route lies in
its folder, verified, and after that the digests of what lies there.
"""

import resource
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import orjson
from blake3 import blake3

from benchmarks.laboratory import baseline
from benchmarks.laboratory.origin import BUCKET, PLAIN_PORT, endpoint
from echo_queue.store import ObjectStore
from echo_queue.weights.manifest import Route

DEADLINE_S = 300.0


@dataclass(frozen=True)
class Spec:
    """`source`: the store alone, one web server at `origin` (the star), or the project's own couriers."""

    name: str
    source: Literal["store", "star", "courier"]
    run: str
    origin: str
    address: str
    redis: str
    folder: Path


def main() -> None:
    values = orjson.loads(Path(sys.argv[1]).read_bytes())
    spec = Spec(**(values | {"folder": Path(values["folder"])}))
    spec.folder.mkdir(parents=True)
    store = ObjectStore(endpoint(spec.origin), spec.run)
    say("ready")
    for line in sys.stdin:
        order = orjson.loads(line)
        if order["do"] == "bring":
            bring(spec, store, Route.decode(order["route"].encode(), spec.name))


def bring(spec: Spec, store: ObjectStore, route: Route) -> None:
    if spec.source == "store":
        baseline.from_store(store, route.parts, spec.folder)
    else:
        baseline.from_peer(spec.origin, PLAIN_PORT, f"{BUCKET}/{spec.run}", route.parts, spec.folder)
    used = resource.getrusage(resource.RUSAGE_SELF)
    cpu_s, rss_mb = used.ru_utime + used.ru_stime, used.ru_maxrss / 1024
    from_store, from_peer = (route.size, 0) if spec.source == "store" else (0, route.size)
    say("whole", cpu_s=cpu_s, rss_mb=rss_mb, store_bytes=from_store, peer_bytes=from_peer)
    paths = [spec.folder / Path(part.key).name for part in route.parts]
    say("digests", digests=[blake3().update_mmap(path).hexdigest() for path in paths])


def say(what: str, **figures: Any) -> None:
    sys.stdout.buffer.write(orjson.dumps({"what": what, "at_s": time.monotonic(), **figures}) + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
