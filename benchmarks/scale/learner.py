"""The process of the learner: real clients of the queue, each with a connection of its own.

The learner collects batches as `learner` does, advances, publishes and commits each update at the load's pace. Its
housekeeper sweeps, and a person's `echo-queue run` looks at the status once a second.

    python -m benchmarks.scale.learner LOAD
"""

import sys
import threading
import time
from typing import Any, cast

from benchmarks.scale.load import SET, Load, answer, caller, configuration, end_process, limits
from echo_queue.queue import (
    Chunk,
    LearnerQueue,
    Monitor,
    Operator,
    Payloads,
    PromptSet,
    RunRules,
    SubmitterQueue,
)
from echo_queue.records import PromptShard, Published, Version
from echo_queue.records.validation import GroupValidator
from learner.batch_collector import Batch, BatchCollector
from learner.housekeeper import Housekeeper

LOOK_S = 1.0
LONGEST_S = 600
"""There are prompts for so many seconds."""


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
            published=lambda: True,
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


def look(load: Load) -> None:
    """Acts as a person who watches the run."""
    monitor = Monitor(caller(load))
    while True:
        monitor.status()
        time.sleep(LOOK_S)


def main() -> None:
    threading.excepthook = end_process
    load = Load.read(sys.argv[1])
    learner, before = Learner(load), 0
    for line in sys.stdin:
        if line == "go\n":
            learner.start()
            threading.Thread(target=look, args=(load,), daemon=True).start()
        if line == "begin\n":
            before = learner.updates
        answer({"updates": learner.updates - before})


if __name__ == "__main__":
    main()
