"""The process of the learner and of what sends groups: real clients of the queue, each with connections of its own.

The learner collects batches as `learner` does, advances, publishes and commits each update at the load's pace. Its
housekeeper sweeps, and a person's `echo-queue run` looks at the status once a second. Groups are completed by threads,
in the names of the workers that leased them, and each call is timed.

    python -m benchmarks.scale.flow LOAD DESCRIPTOR
"""

import os
import sys
import threading
import time
from dataclasses import replace
from queue import SimpleQueue
from typing import Any, cast

import orjson
import redis

from benchmarks.queue import task_of
from benchmarks.scale.load import RUN, SET, GroupMaker, Load, answer, configuration, limits, percentiles
from echo_queue.launch.server_process import HOST
from echo_queue.queue import (
    Caller,
    Chunk,
    LearnerQueue,
    Monitor,
    Operator,
    Outcome,
    Payloads,
    PromptSet,
    RunRules,
    SubmitterQueue,
    WorkerQueue,
)
from echo_queue.records import PromptShard, Published, Version
from echo_queue.records.validation import GroupValidator
from learner.batch_collector import Batch, BatchCollector
from learner.housekeeper import Housekeeper

COMPLETERS = 4
LOOK_S = 1.0
LONGEST_S = 600
"""There are prompts for so many seconds."""


def caller(load: Load) -> Caller:
    return Caller(redis.Redis(HOST, load.port, protocol=2), RUN)


class Learner(threading.Thread):
    """Trains nothing, at the load's pace."""

    def __init__(self, load: Load) -> None:
        super().__init__(daemon=True)
        config = configuration(load.batch, load.staleness)
        self.updates = 0
        self._load = load
        self._validator = GroupValidator(limits(config), Version(0, 0))
        self._queue = LearnerQueue(caller(load), Payloads(validator=self._validator))
        rules = RunRules.of(config)
        operator = Operator(caller(load))
        operator.configure(rules)
        self._lineage = self._queue.resume(rules).lineage
        self._housekeeper = Housekeeper(caller(load), cast(Any, None), rules.lease_ms / 1000, lambda status: None)
        self._collector = BatchCollector(
            config,
            self._queue,
            Monitor(caller(load)),
            self._validator,
            version=Version(self._lineage, 0),
            check=self._housekeeper.check,
        )

    def submit(self) -> None:
        """Publishes the first weights and submits prompts enough for any measurement."""
        self._publish(0)
        submitter, prompts = SubmitterQueue(caller(self._load)), round(LONGEST_S * self._load.rate)
        submitter.declare(PromptSet(SET, "benchmark"), [Chunk(0, 0, prompts)])
        submitter.submit(SET, 0, PromptShard("shard", 0, prompts))

    def run(self) -> None:
        self.submit()
        self._housekeeper.start()
        stop, due = threading.Event(), time.monotonic()
        while True:
            batch = self._collector.gather(self.updates, stop)
            assert isinstance(batch, Batch)
            due = max(due + self._load.batch / self._load.rate, time.monotonic())
            time.sleep(max(0.0, due - time.monotonic()))
            self.updates += 1
            self._queue.advance(self.updates, len(batch.groups), 1.0)
            self._publish(self.updates)
            self._queue.commit(f"after {self.updates}", [group.task for group in batch.groups])

    def _publish(self, number: int) -> None:
        version = Version(self._lineage, number)
        self._queue.publish(Published(version, "manifest", "digest"))
        self._validator.newest = version


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


def look(load: Load) -> None:
    """Acts as a person who watches the run."""
    monitor = Monitor(caller(load))
    while True:
        monitor.status()
        time.sleep(LOOK_S)


def end(failed: threading.ExceptHookArgs) -> None:
    """Ends this process, and with it the measurement, when any thread of it fails."""
    threading.__excepthook__(failed)
    os._exit(1)


def main() -> None:
    threading.excepthook = end
    load = Load.read(sys.argv[1])
    learner, completers = Learner(load), Completers(load, int(sys.argv[2]))
    begun, updates = time.monotonic(), 0
    for line in sys.stdin:
        if line == "go\n":
            learner.start()
            threading.Thread(target=look, args=(load,), daemon=True).start()
        if line == "begin\n":
            completers.milliseconds, completers.outcomes = [], []
            begun, updates = time.monotonic(), learner.updates
        seconds = time.monotonic() - begun
        p50, p99, longest = percentiles(completers.milliseconds)
        answer(
            {
                "seconds": seconds,
                "accepted": completers.outcomes.count(Outcome.accepted),
                "refused": len(completers.outcomes) - completers.outcomes.count(Outcome.accepted),
                "updates": learner.updates - updates,
                "complete_p50_ms": p50,
                "complete_p99_ms": p99,
                "complete_longest_ms": longest,
            }
        )


if __name__ == "__main__":
    main()
