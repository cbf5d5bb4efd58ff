"""The process of `benchmarks.scale.fleet`, but with threads and redis-py's own connections, as a worker has them."""

import os
import sys
import threading
import time
from collections.abc import Callable

import redis

from benchmarks.scale.fleet import handing_over
from benchmarks.scale.load import Load, answer, configuration
from benchmarks.scale.waiting_worker import WaitingWorker


class Threads:
    """Runs each loop in a thread."""

    def spawn(self, loop: Callable[[], object]) -> None:
        threading.Thread(target=loop, daemon=True).start()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


def main() -> None:
    load, complete = Load.read(sys.argv[1]), handing_over(int(sys.argv[2]))
    config, client = configuration(load.batch, load.staleness), redis.Redis(port=load.port, protocol=2)
    WaitingWorker(Threads(), client, config, name="worker-0", load=load, complete=complete).start()
    for _ in sys.stdin:
        answer({"started": 1})
    os._exit(0)


if __name__ == "__main__":
    main()
