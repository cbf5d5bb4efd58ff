"""A worker that follows the weights as the product does, without an engine; also as a process that can be killed:
`python -m tests.workers.weights.reader SPEC` says "prefetched" once it has prefetched two chunks, and goes on until
it ends.
"""

import sys
import time
from pathlib import Path
from typing import Any

import orjson
import redis

from echo_queue.queue import RunKeys
from echo_queue.records import Version
from echo_queue.storage.endpoint import StoreEndpoint
from echo_queue.storage.object_store import ObjectStore
from echo_queue.weights import SignatureVerifier
from tests.queue.clients import Clients
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
        self.watcher = WeightWatcher(queue, fetcher, None, self.prefetcher.update)
        self.watcher.start()

    @property
    def version(self) -> Version | None:
        return self.stage.have[0] if self.stage.have else None

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
    while reader.version is None:
        time.sleep(0.01)
    before = sum(member.exchange.fetched.values())
    print("follows", flush=True)
    while sum(member.exchange.fetched.values()) < before + spec["enough"]:
        time.sleep(0.005)
    print("prefetched", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
