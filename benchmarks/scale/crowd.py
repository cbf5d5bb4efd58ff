"""A run with many tasks in flight at many workers, made by the real moves."""

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
        self.operator.configure(RunRules(s=s, batch=batch, pace=False, lease_ms=HOUR_MS, longest_first=False))
        self.lineage = self.learner.resume().lineage
        self.publish(0)
        submitter = SubmitterQueue(caller)
        submitter.declare(PromptSet(SET, "benchmark"), [Chunk(0, 0, tasks)])
        submitter.submit(SET, 0, PromptShard("shard", 0, tasks))
        while self.operator.admit():
            pass

    def publish(self, number: int) -> None:
        self.learner.publish(Published(Version(self.lineage, number), f"manifest-{number}", "digest"))

    def lease(self, workers: int, each: int, version: int = 0) -> dict[str, list[Task]]:
        """Lets each of `workers` workers lease `each` tasks and send a heartbeat; returns the tasks by worker."""
        held = {}
        for number in range(workers):
            name = f"worker-{number}"
            held[name] = list(self.worker.lease(name, Version(self.lineage, version), each).tasks)
            self.worker.heartbeat(name, Heartbeat("engine", Version(self.lineage, version), "generating"), 60.0)
        return held
