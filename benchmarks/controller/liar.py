"""A worker that makes nothing, claims to be ten times as fast as it is, and obeys nobody."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from echo_queue.config import Config
from echo_queue.queue import Caller, Heartbeat, WorkerQueue
from echo_queue.records import Version

CLAIMED = 10.0
"""By what the lie multiplies the true rate."""


@contextmanager
def lying(config: Config, name: str, pool: str, groups_per_s: float, every_s: float) -> Iterator[None]:
    """Beats in the place of worker `name`, whose own process is frozen, until the end."""
    queue, stop = WorkerQueue(Caller.connect(config, "worker")), threading.Event()
    claim = Heartbeat(
        "paced",
        Version(0, 0),
        "generating",
        groups_per_s=CLAIMED * groups_per_s,
        groups=1_000,
        pool=pool,
        machine=name,
    )

    def beat() -> None:
        while not stop.wait(every_s):
            queue.heartbeat(name, claim, every_s)

    thread = threading.Thread(target=beat, name="liar")
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
