"""A run with many tasks in flight at many workers, made by the real moves."""

from collections.abc import Iterable

import redis

from benchmarks.scale.load import RUN, SET
from echo_queue.queue import (
    Caller,
    Chunk,
    Heartbeat,
    LearnerQueue,
    Monitor,
    Operator,
    PromptSet,
    RunRules,
    SubmitterQueue,
    WorkerQueue,
)
from echo_queue.records import PromptShard, Published, Task, Version

HOUR_MS = 3_600_000


class Crowd:
    """`tasks` admitted prompts of a run whose learner has version 0 of lineage 1. Nothing is leased yet."""

    def __init__(self, client: "redis.Redis", tasks: int, batch: int, staleness: int | None = None) -> None:
        caller = Caller(client, RUN)
        self.worker, self.learner = WorkerQueue(caller), LearnerQueue(caller)
        self.operator, self.monitor = Operator(caller), Monitor(caller)
        self.caller = caller
        s = tasks // batch + 2 if staleness is None else staleness
        self.rules = RunRules(s=s, batch=batch, pace=False, lease_ms=HOUR_MS, longest_first=False)
        self.operator.configure(self.rules)
        self.lineage = self.learner.resume(self.rules).lineage
        self.publish(0)
        self.submit(SET, tasks)

    def submit(self, name: str, prompts: int) -> None:
        """Submits a set of prompts, and admits them."""
        submitter = SubmitterQueue(self.caller)
        submitter.declare(PromptSet(name, "benchmark"), [Chunk(0, 0, prompts)])
        submitter.submit(name, 0, PromptShard("shard", 0, prompts))
        self.admit()

    def admit(self) -> None:
        """Admits all that bound and pace allow, as the learner's housekeeper does within a second."""
        while self.operator.admit():
            pass

    def publish(self, number: int) -> None:
        self.learner.publish(Published(Version(self.lineage, number), f"manifest-{number}", "digest"))

    def lease(self, workers: int, each: int, version: int = 0) -> dict[str, list[Task]]:
        """Lets each of `workers` workers send a heartbeat and lease `each` tasks; returns the tasks by worker."""
        names = [f"worker-{number}" for number in range(workers)]
        for name in names:
            self.worker.heartbeat(name, Heartbeat("engine", Version(self.lineage, version), "generating"), 60.0)
        return self.lease_all(names, each, version)

    def lease_all(self, names: Iterable[str], each: int, version: int = 0) -> dict[str, list[Task]]:
        """Lets each of these workers lease `each` tasks; returns them by worker."""
        return {name: list(self.worker.lease(name, Version(self.lineage, version), each).tasks) for name in names}
