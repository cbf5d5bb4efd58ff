"""A worker that only fetches and serves, as a process to be killed: `python -m tests.workers.weights.node SPEC`.

Says "begun" when the first chunk of the route is here, "half" when half of them are, then "whole" and its bytes by
source; then serves until its input ends.
"""

import os
import sys
import threading
from pathlib import Path
from typing import Any

import orjson
import redis

from echo_queue.connections.storage.endpoint import StoreEndpoint
from echo_queue.connections.storage.object_store import ObjectStore
from echo_queue.weights.manifest import Route
from tests.queue.clients import Clients
from tests.waiting import wait_until
from tests.workers.weights.peer_harness import Member, PeerHarness, hold_up


def main() -> None:
    spec: dict[str, Any] = orjson.loads(sys.argv[1])
    store = ObjectStore(StoreEndpoint(**spec["store"]), spec["run"], 10.0)
    peer_harness = PeerHarness(
        Clients(redis.Redis(port=spec["redis_port"]), spec["run"], deadline_s=10.0),
        store,
        Path(spec["folder"]),
        configure=False,
    )
    if "stops_at" in spec:
        hold_up(store, spec["stops_at"])
    member = Member(peer_harness, spec["name"], peer_host="127.0.0.1", **spec["settings"])
    route = Route.decode(spec["route"].encode(), "the test")
    threading.Thread(target=watch, args=(member, route), daemon=True).start()
    store_bytes, peer_bytes = member.fetch(route)
    say(f"whole {store_bytes} {peer_bytes}")
    sys.stdin.read()
    member.close()


def watch(member: Member, route: Route) -> None:
    """Thread: reports how far the route is."""
    for words, chunks in (("begun", 1), ("half", sum(len(part.chunks) for part in route.parts) / 2)):
        wait_until(lambda least=chunks: landed(member, route) >= least, words)  # type: ignore[misc]
        say(words)


def landed(member: Member, route: Route) -> int:
    return sum(file.next for part in route.parts if (file := member.part_cache.find(part.key)))


def say(line: str) -> None:
    """Prints a line in one write, because two threads print."""
    os.write(sys.stdout.fileno(), f"{line}\n".encode())


if __name__ == "__main__":
    main()
