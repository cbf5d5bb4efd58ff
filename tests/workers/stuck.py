"""`python -m tests.workers.stuck CONFIG NOTICE`: a worker that holds all tasks, and whose main thread is stuck."""

import sys
import time
from pathlib import Path

from echo_queue.config import Preemption
from echo_queue.config.loading import load
from echo_queue.records import Version
from tests.queue.clients import Clients
from workers.held_leases import HeldLeases
from workers.preemption import watch
from workers.shutdown import Shutdown, ShutdownThread, on_signals


def main(config_path: Path, notice: Path) -> None:
    config = load(config_path)
    queue = Clients.connected_as(config, "worker", deadline_s=600.0)
    shutdown = Shutdown()
    on_signals(shutdown)
    watch(Preemption(watch="file", file=notice, poll_s=0.05), shutdown)
    held = HeldLeases()
    held.add(queue.lease("w1", Version(0, 0), 8).tasks, version=0)
    ShutdownThread(queue, "w1", shutdown, config.rollout.grace_s, held=held, retire=lambda: None).start()
    while True:
        time.sleep(3600)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
