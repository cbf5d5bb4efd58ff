"""A learner that publishes two versions, as a process: `python -m tests.workers.weights.uploader SPEC`.

It waits for a line of input after each. The second has several parts, which it announces as the product does; where it
dies, its environment says (`echo_queue.failpoints`).
"""

import sys
from typing import Any

import orjson
import redis

from echo_queue.connections.storage.endpoint import StoreEndpoint
from echo_queue.connections.storage.object_store import ObjectStore
from echo_queue.records import Version
from learner.publication.announcer import Announcer
from tests.queue.clients import Clients
from tests.weights.published_weights import history, weight_publisher


def main() -> None:
    spec: dict[str, Any] = orjson.loads(sys.argv[1])
    store = ObjectStore(StoreEndpoint(**spec["store"]), spec["run"], 10.0)
    queue = Clients(redis.Redis(port=spec["redis_port"]), spec["run"], deadline_s=10.0)
    announcer = Announcer(queue.learner(1))
    announcer.start()
    learner = weight_publisher(store, announce=announcer.announce)
    for number, tensors in enumerate(history(1)):
        queue.publish(1, learner.publish(Version(1, number), tensors, "float32"))
        print("published", number, flush=True)
        sys.stdin.readline()


if __name__ == "__main__":
    main()
