"""A machine whose worker generates nothing: it beats, and obeys the orders that its heartbeats bring.

    python -m tests.fleet.machine_process URL RUN NAME POOL JOURNAL

It writes "began NAME" to the journal when it begins, "left NAME" when it was told to rest or to leave, and "ended NAME"
when its place ended it. Until then it is there, as a rented machine is.
"""

import sys
import threading
from pathlib import Path

import redis

from echo_queue.launch.signals import set_on_signals
from echo_queue.queue import Caller, Heartbeat, WorkerQueue
from echo_queue.records import Version

EVERY_S = 0.05
DEADLINE_S = 180.0
"""The time for which it waits for a server that is away."""
GROUPS_PER_S = 1.0


def main(url: str, run: str, name: str, pool: str, journal: Path) -> None:
    stop = threading.Event()
    set_on_signals(stop)
    queue = WorkerQueue(Caller(redis.Redis.from_url(url, socket_timeout=30.0), run, DEADLINE_S))
    _note(journal, f"began {name}")
    said = Heartbeat("none", Version(0, 0), "generating", 1.0, GROUPS_PER_S, 1, pool=pool, machine=name)
    while not stop.is_set():
        if queue.heartbeat(name, said, EVERY_S) is not None:
            _note(journal, f"left {name}")
            break
        stop.wait(EVERY_S)
    queue.leave(name)
    stop.wait()
    _note(journal, f"ended {name}")


def _note(journal: Path, line: str) -> None:
    with journal.open("a") as file:
        file.write(line + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:5], Path(sys.argv[5]))
