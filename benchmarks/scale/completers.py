"""The process that completes groups: threads with a client of the queue, in the names of the workers that leased them.

Each call is timed. The process does nothing else, since on real machines no learner computes beside a worker's calls.

    python -m benchmarks.scale.completers LOAD DESCRIPTOR
"""

import os
import sys
import threading
import time
from dataclasses import replace
from queue import SimpleQueue

import orjson

from benchmarks.queue import task_of
from benchmarks.scale.load import GroupMaker, Load, answer, caller, end_process, percentiles
from echo_queue.queue import Outcome, WorkerQueue
from echo_queue.records import Version

COMPLETERS = 4


class Completers:
    """Threads that complete groups in the workers' names, as they are named on `descriptor`."""

    def __init__(self, load: Load, descriptor: int) -> None:
        self.milliseconds: list[float] = []
        self.outcomes: list[Outcome] = []
        self._queue, self._groups = WorkerQueue(caller(load)), GroupMaker()
        self._due: SimpleQueue[bytes] = SimpleQueue()
        self._descriptor = descriptor
        for work in (self._read, *[self._complete] * COMPLETERS):
            threading.Thread(target=work, daemon=True).start()

    def _read(self) -> None:
        with os.fdopen(self._descriptor, "rb") as lines:
            for line in lines:
                self._due.put(line)

    def _complete(self) -> None:
        while True:
            words = orjson.loads(self._due.get())
            task_id, name, epoch, index, attempt = words["task"]
            task = replace(task_of(index), id=task_id, set=name, epoch=epoch, attempt=attempt)
            group = self._groups.group(task, words["worker"], Version(*words["version"]))
            begun = time.perf_counter()
            outcomes = self._queue.complete(words["worker"], [group])
            self.milliseconds.append(1000 * (time.perf_counter() - begun))
            self.outcomes += outcomes


def main() -> None:
    threading.excepthook = end_process
    completers = Completers(Load.read(sys.argv[1]), int(sys.argv[2]))
    begun = time.monotonic()
    for line in sys.stdin:
        if line == "begin\n":
            completers.milliseconds, completers.outcomes = [], []
            begun = time.monotonic()
        seconds = time.monotonic() - begun
        p50, p99, longest = percentiles(completers.milliseconds)
        answer(
            {
                "seconds": seconds,
                "accepted": completers.outcomes.count(Outcome.accepted),
                "refused": len(completers.outcomes) - completers.outcomes.count(Outcome.accepted),
                "complete_p50_ms": p50,
                "complete_p99_ms": p99,
                "complete_longest_ms": longest,
            }
        )


if __name__ == "__main__":
    main()
