"""The gain of beginning the longest groups first: makespan and the learner's idle time, through the real queue.

- Nothing is generated and no thread sleeps: workers and the learner follow a simulated clock, while their calls to the
  queue are real. A run thus takes a second and has the same result each time.
- A worker holds as many groups as an engine would, and their tokens pass at the engine's speed: a step takes as long
  with one group, with two, … as was measured (`recorded`), or half as long with one as with all (`log-normal`).
- A trace has each prompt's bucket, which the queue gets at submission, and its group's lengths in two epochs. The
  second epoch's groups are generated; the first epoch's lengths are what `last epoch` knows.
- `bucket`: nothing is known at first, then the lengths of prompts of the same bucket. `told`: each group's own length.
- `designated`: like `last epoch`, but the worker that generates the longest group of an update takes fewer beside it if
  all end sooner by that (`slots_beside`). The queue has no such rule; this shows what it would gain.
- The bound: no order is faster than all tokens in full batches on all workers, or than the longest group on its own.

    python -m benchmarks.long_tail [--json]
"""

import argparse
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import orjson
import redis

from benchmarks.verdict import conclude
from echo_queue.queue import (
    Admin,
    Caller,
    Chunk,
    LearnerQueue,
    Operator,
    PromptSet,
    RunRules,
    SubmitterQueue,
    WorkerQueue,
)
from echo_queue.records import BASE, Group, PromptShard, Published, Sample, Span, Task, Version
from echo_queue.services.redis_server import RedisServer

RECORDED = Path("benchmarks/long_tail.json")
BATCH = 32
WORKERS = 4
GROUPS = 4
"""Groups that a worker generates at once."""
SEEDS = 5
"""Number of log-normal traces."""
LEVELS = 8
CORRELATION = 0.6
"""Correlation of a log-normal prompt's level, before rounding, with the logarithm of its length."""
TRAIN_SHARE = 0.3
"""Duration of an update's training, as a share of its generation in full batches."""
ORDERS = ("plain", "bucket", "last epoch", "told", "designated")
Lengths = Sequence[int]


@dataclass(frozen=True)
class Trace:
    """Tokens of the longest sample of each prompt's group, in two epochs. `steps_s`: seconds of a step with 1, 2, …
    groups."""

    name: str
    buckets: bytes
    before: Lengths
    now: Lengths
    steps_s: Sequence[float]

    @property
    def train_s(self) -> float:
        return TRAIN_SHARE * sum(self.now) / len(self.now) * BATCH * self.steps_s[-1] / (GROUPS * WORKERS)

    @property
    def batches(self) -> Sequence[Lengths]:
        return [self.now[first : first + BATCH] for first in range(0, len(self.now), BATCH)]


@dataclass(frozen=True)
class Row:
    """The figures of one trace, bound S and order, as means over the seeds. `bound_s`: no order can be faster."""

    trace: str
    s: int
    order: str
    makespan_s: float
    bound_s: float
    idle_share: float
    sent_back: int
    """Total number of groups that became too old."""


def heavy_tailed(seed: int, prompts: int = 256) -> Trace:
    """Draws log-normal lengths, similar for one prompt in both epochs, as for a model that changes little."""
    random = np.random.default_rng(seed)
    level, rest = random.normal(size=prompts), random.normal(size=prompts)
    prompt = 5.3 + 0.9 * (CORRELATION * level + np.sqrt(1 - CORRELATION**2) * rest)
    before, now = (np.exp(prompt + random.normal(0, 0.2, prompts)).clip(8, 2048).astype(int).tolist() for _ in range(2))
    buckets = np.searchsorted(np.quantile(level, np.arange(1, LEVELS) / LEVELS), level) + 1
    steps_s = [0.002 * (1 + groups / GROUPS) / 2 for groups in range(1, GROUPS + 1)]
    return Trace("log-normal", bytes(buckets.tolist()), before, now, steps_s)


def recorded() -> Trace:
    """Reads the trace that `benchmarks.record_lengths` wrote."""
    words = orjson.loads(RECORDED.read_bytes())
    return Trace("recorded", bytes(words["buckets"]), words["before"], words["now"], words["steps_s"])


# Workers --------------------------------------------------------------------------------------------------------------


@dataclass
class RunningGroup:
    task: Task
    version: Version
    left: float
    """Tokens still to generate."""


@dataclass
class Worker:
    """A simulated worker. `slots` returns how many groups it may hold, given those that it holds."""

    name: str
    queue: WorkerQueue
    trace: Trace
    slots: Callable[[Sequence[RunningGroup]], int]
    running: list[RunningGroup] = field(default_factory=list)

    @property
    def step_s(self) -> float:
        return self.trace.steps_s[len(self.running) - 1]

    @property
    def ends_s(self) -> float:
        """Returns the seconds until its next group ends."""
        return min((one.left for one in self.running), default=float("inf")) * self.step_s

    def lease(self, version: Version) -> bool:
        """Leases once, as much as there is room for; returns whether it got anything."""
        room = self.slots(self.running) - len(self.running)
        tasks = self.queue.lease(self.name, version, room).tasks if room > 0 else ()
        self.running += [RunningGroup(task, version, float(self.trace.now[task.index])) for task in tasks]
        return bool(tasks)

    def pass_time(self, seconds: float) -> None:
        step_s = self.step_s
        for one in self.running:
            one.left -= seconds / step_s

    def complete(self) -> None:
        ended = [one for one in self.running if one.left < 1e-6]
        self.running = [one for one in self.running if one.left >= 1e-6]
        if ended:
            groups = [group_of(one.task, self.name, one.version, self.trace.now[one.task.index]) for one in ended]
            self.queue.complete(self.name, groups)


def group_of(task: Task, worker: str, version: Version, length: int) -> Group:
    sample = Sample(np.zeros(length, np.int32), np.zeros(length, np.float32), (Span(0, version.number),), 1.0, "stop")
    prompt = np.zeros(8, np.int32)
    return Group(task.id, task.set, task.epoch, task.index, task.attempt, worker, version.lineage, prompt, (sample,))


def slots_beside(longest: float, window: Lengths, steps_s: Sequence[float]) -> int:
    """Returns how many groups a worker that generates one of `longest` tokens should hold, so that all of `window` end
    soonest.

    Fewer groups make each of its steps shorter, and leave more to the others. As in StreamRL (arXiv 2504.15930), a
    sample takes its length × the seconds of a step with the groups beside it, and the best split ends first.
    """
    groups = len(steps_s)

    def ends_s(slots: int) -> float:
        long_s, throughput = longest * steps_s[slots - 1], groups / steps_s[-1]
        beside = (slots - 1) * longest
        others_s = (sum(window) - longest - beside) / (throughput * (WORKERS - 1))
        return max(long_s, others_s)

    return min(range(groups, 0, -1), key=ends_s)


# The learner ----------------------------------------------------------------------------------------------------------


class Trainer:
    """A simulated learner: an update takes `train_s` and trains nothing."""

    def __init__(self, queue: LearnerQueue, train_s: float) -> None:
        self._queue = queue
        self._train_s = train_s
        self._hand: list[str] = []
        self.ends_s = float("inf")
        """The end of its update, by the simulated clock."""
        self.version = BASE

    def begin(self, rules: RunRules) -> None:
        """Begins a lineage, with these rules, at the version that it has."""
        self.version = self.version._replace(lineage=self._queue.resume(rules, self.version).lineage)
        self._publish()

    def begin_if_ready(self, now_s: float) -> None:
        """Begins an update as soon as there is a batch."""
        if self.ends_s == float("inf"):
            self._hand += [one.task for one in self._queue.drain(BATCH - len(self._hand)).groups]
            if len(self._hand) == BATCH:
                self.ends_s = now_s + self._train_s

    def update(self) -> None:
        self.version = self.version._replace(number=self.version.number + 1)
        self._queue.advance(self.version.number, len(self._hand), 8.0)
        self._queue.commit(f"{self.version}", self._hand)
        self._hand, self.ends_s = [], float("inf")
        self._publish()

    def _publish(self) -> None:
        self._queue.publish(Published(self.version, "manifest", "digest"))


# A run ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Measured:
    makespan_s: float
    idle_s: float
    sent_back: int


def run(client: "redis.Redis", name: str, trace: Trace, s: int, order: str) -> Measured:
    caller, size = Caller(client, name), len(trace.now)
    operator, submitter, queue = Operator(caller), SubmitterQueue(caller), WorkerQueue(caller)
    rules = RunRules(s, BATCH, lease_ms=600_000, pace=False, longest_first=order != "plain")
    on_policy = replace(rules, s=0)
    operator.configure(on_policy)
    epochs = 1 if order in ("plain", "bucket") else 2
    submitter.declare(PromptSet("p", "a trace", epochs=epochs), [Chunk(0, 0, size)])
    submitter.submit("p", 0, PromptShard("none", 0, size), trace.buckets if order == "bucket" else b"")
    trainer = Trainer(LearnerQueue(caller), trace.train_s)
    trainer.begin(on_policy)
    if epochs == 2:  # the first takes no time
        complete_first_epoch(queue, trainer, trace.now if order == "told" else trace.before)
    trainer.begin(rules)
    began = trainer.version.number

    def slots(running: Sequence[RunningGroup]) -> int:
        if order != "designated" or not running:
            return GROUPS
        first = BATCH * (trainer.version.number - began)
        longest = max(trace.before[one.task.index] for one in running)
        return slots_beside(longest, trace.before[first : first + BATCH * (1 + s)], trace.steps_s)

    simulated = [Worker(f"w{number}", queue, trace, slots) for number in range(WORKERS)]
    return timed(trainer, simulated, began + len(trace.batches), operator)


def complete_first_epoch(queue: WorkerQueue, trainer: Trainer, lengths: Lengths) -> None:
    """Completes the first epoch, from which the queue learns the lengths."""
    for _ in range(len(lengths) // BATCH):
        tasks = queue.lease("teacher", trainer.version, BATCH).tasks
        queue.complete("teacher", [group_of(one, "teacher", trainer.version, lengths[one.index]) for one in tasks])
        trainer.begin_if_ready(0.0)
        trainer.update()


def timed(trainer: Trainer, simulated: Sequence[Worker], last: int, operator: Operator) -> Measured:
    """Runs until the learner has made version `last`, and measures it."""
    now_s = trained_s = 0.0
    while trainer.version.number < last:
        hungry = list(simulated)
        while hungry:  # a worker that got something asks again once the others have asked
            hungry = [worker for worker in hungry if worker.lease(trainer.version)]
        trainer.begin_if_ready(now_s)
        passes_s = min(trainer.ends_s - now_s, *(worker.ends_s for worker in simulated))
        if passes_s == float("inf"):
            raise RuntimeError(f"no worker and no learner has anything to do: {operator.status()}")
        for worker in simulated:
            worker.pass_time(passes_s)
            worker.complete()
        trained_s += passes_s if trainer.ends_s < float("inf") else 0
        now_s += passes_s
        if trainer.ends_s <= now_s:
            trainer.update()
    counts = operator.status().counts
    sent_back = sum(counts.get(cause, 0) for cause in ("cancelled", "late", "late_completion"))
    return Measured(now_s, now_s - trained_s, sent_back)


def bound_s(trace: Trace, s: int) -> float:
    """Returns the bound that no order can beat: at S = 0 update by update, else for the whole trace."""

    def work_s(lengths: Lengths) -> float:
        return max(sum(lengths) * trace.steps_s[-1] / (WORKERS * GROUPS), max(lengths) * trace.steps_s[0])

    if s == 0:
        return sum(work_s(batch) + trace.train_s for batch in trace.batches)
    return max(work_s(trace.now), (len(trace.batches) - 1) * trace.train_s) + trace.train_s


# ----------------------------------------------------------------------------------------------------------------------


def measure(client: "redis.Redis") -> Iterator[Row]:
    for traces in ([recorded()], [heavy_tailed(seed) for seed in range(1, SEEDS + 1)]):
        for s in (0, 4):
            for order in ORDERS:
                runs = [run(client, f"{one.name}-{s}-{order}-{at}", one, s, order) for at, one in enumerate(traces)]
                yield row_of(traces, s, order, runs)


def row_of(traces: Sequence[Trace], s: int, order: str, runs: Sequence[Measured]) -> Row:
    makespan_s = statistics.fmean(one.makespan_s for one in runs)
    idle_share = statistics.fmean(one.idle_s / one.makespan_s for one in runs)
    least_s = statistics.fmean(bound_s(trace, s) for trace in traces)
    return Row(traces[0].name, s, order, makespan_s, least_s, idle_share, sum(one.sent_back for one in runs))


def targets(rows: Sequence[Row]) -> dict[str, bool]:
    """Returns the promises: the default order is faster than plain order at S = 0, and never much slower."""
    made = {(row.trace, row.s, row.order): row.makespan_s for row in rows}
    ratios = {key: made[key] / made[key[0], key[1], "plain"] for key in made if key[2] in ("bucket", "last epoch")}
    return {
        "longest first shortens each trace at S = 0": all(ratio < 1 for (_, s, _), ratio in ratios.items() if s == 0),
        "it costs no more than 2 % at S = 4": all(ratio < 1.02 for (_, s, _), ratio in ratios.items() if s == 4),
    }


def table(rows: Sequence[Row]) -> str:
    head = "| trace | S | order | makespan | / bound | learner idle | sent back |\n" + "| --- " * 7 + "|"
    body = (
        f"| {row.trace} | {row.s} | {row.order} | {row.makespan_s:.3g} s | {row.makespan_s / row.bound_s:.2f} "
        f"| {row.idle_share:.1%} | {row.sent_back} |"
        for row in rows
    )
    return "\n".join((head, *body))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with TemporaryDirectory() as directory:
        server = RedisServer(Path(directory))
        server.start()
        try:
            with server.client() as client:
                Admin(Caller(client, "install")).install()
                client.config_set("appendfsync", "no")  # the simulated clock has no disk
                rows = list(measure(client))
        finally:
            server.stop()
    held = targets(rows)
    print(table(rows))
    return conclude(rows, held, as_json=arguments.json)


if __name__ == "__main__":
    sys.exit(main())
