"""A worker that follows the weights as the product does, without an engine; also as a process that can be killed:
`python -m tests.workers.weights.reader SPEC` says "prefetched" once it has prefetched two chunks, and goes on until
it ends.
"""

import sys
from pathlib import Path
from typing import Any

import orjson
import redis

from echo_queue.connections.storage.endpoint import StoreEndpoint
from echo_queue.connections.storage.object_store import ObjectStore
from echo_queue.queue import Announced, RunKeys
from echo_queue.records import Version
from echo_queue.weights import SignatureVerifier
from tests.queue.clients import Clients
from tests.waiting import wait_until
from tests.workers.weights.peer_harness import DEADLINE_S, SECRET, Member, PeerHarness
from workers.weights.fetch import VersionFetcher
from workers.weights.key_pinning import PinnedKey
from workers.weights.prefetch import Prefetcher
from workers.weights.staging import Stage
from workers.weights.weight_watcher import WeightWatcher


class Reader:
    """A worker's weights: `member` fetches and serves; a watcher stages versions and prefetches announced parts."""

    def __init__(
        self, member: Member, queue: Clients, store: ObjectStore, key: str, prefetch_s: float = DEADLINE_S
    ) -> None:
        self.member, self.part_cache, self.exchange = member, member.part_cache, member.exchange
        self._queue = queue
        self.stage = Stage()
        pinned = PinnedKey(SignatureVerifier(key), RunKeys(key, SECRET, bytes(32)), queue)
        fetcher = VersionFetcher(store, pinned, self.stage, self.exchange, DEADLINE_S)
        self.prefetcher = Prefetcher(queue, pinned.verifier, self.stage, self.exchange, prefetch_s)
        self.looks = 0
        """The number of times that the watcher has read the announcement from the queue and acted on it."""
        self.watcher = WeightWatcher(queue, fetcher, None, self._update)
        self.watcher.start()

    @property
    def version(self) -> Version | None:
        return self.stage.have[0] if self.stage.have else None

    def _update(self, announced: Announced | None) -> None:
        """Watcher's thread: does what the product's watcher does, and counts it."""
        self.prefetcher.update(announced)
        self.looks += 1

    def close(self) -> None:
        self.watcher.close()
        self._queue.resume()  # an event, for which it waits
        self.watcher.join(timeout=60)


def main() -> None:
    spec: dict[str, Any] = orjson.loads(sys.argv[1])
    store = ObjectStore(StoreEndpoint(**spec["store"]), spec["run"], 10.0)
    queue = Clients(redis.Redis(port=spec["redis_port"]), spec["run"], deadline_s=10.0)
    member = Member(PeerHarness(queue, store, Path(spec["folder"]), configure=False), spec["name"], **spec["settings"])
    reader = Reader(member, queue, store, spec["public_key"])
    wait_until(lambda: reader.version is not None, "the first version")
    before = sum(member.exchange.fetched.values())
    print("follows", flush=True)
    wait_until(lambda: sum(member.exchange.fetched.values()) >= before + spec["enough"], "the prefetched bytes")
    print("prefetched", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
