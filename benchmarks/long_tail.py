"""What it gains to begin the longest groups first: makespan and the learner's idle time, through the real queue.

- Workers generate nothing. Each holds as many groups as an engine would, and their tokens pass at the speed of an
  engine: a step of one group takes half as long as one of a full batch. What they and the learner ask of the queue is
  real.
- A trace has two lengths for each prompt: the first epoch's, which pass in no time and tell the queue what to expect,
  and the second's, which are measured.
- `designated`: one worker in four takes the groups of each update that are expected to be the longest, two at once,
  from a queue of their own. The queue has no such thing; this is what it would gain.
- The bound: nobody can be sooner than all tokens by full batches on all workers, or the longest group on its own.

    python -m benchmarks.long_tail [--rounds 3] [--json]
"""

import argparse
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import orjson
import redis

from benchmarks.verdict import conclude
from echo_queue.queue import Chunk, PromptSet, Queue, QueuePolicy
from echo_queue.records import Group, Published, Sample, Shard, Span, Task, Version
from echo_queue.services.redis_server import RedisServer

RECORDED = Path("benchmarks/long_tail.json")
BATCH = 32
WORKERS = 4
GROUPS = 4
"""Groups that a worker generates at once."""
DESIGNATED = 2
"""Those that a designated worker does."""
STRETCH = 16
FULL_STEP_S = 0.002
TRAIN_S = 0.3
DEADLINE_S = 300.0
Lengths = Sequence[int]


@dataclass(frozen=True)
class Trace:
    """Tokens of the longest sample of each prompt's group, in two epochs."""

    name: str
    before: Lengths
    now: Lengths


@dataclass(frozen=True)
class Row:
    """One trace, bound S and order. Seconds are medians; `bound_s` is what no order can beat."""

    trace: str
    s: int
    order: str
    makespan_s: float
    bound_s: float
    idle_share: float
    sent_back: int
    """Groups that became too old, in all rounds."""


def heavy_tailed(prompts: int = 256) -> Trace:
    """Log-normal lengths; those of one prompt are alike, as they are for a model that changes little in an epoch."""
    random = np.random.default_rng(1)
    prompt = random.normal(5.3, 0.9, prompts)
    epochs = (np.exp(prompt + random.normal(0, 0.2, prompts)).clip(8, 2048).astype(int).tolist() for _ in range(2))
    return Trace("log-normal", *epochs)


def recorded() -> Trace:
    """What `benchmarks.record_lengths` wrote. Its tokens are stretched, so that they take as long as the others."""
    words = orjson.loads(RECORDED.read_bytes())
    return Trace("recorded", *([STRETCH * length for length in words[epoch]] for epoch in ("before", "now")))


# Workers --------------------------------------------------------------------------------------------------------------


def step_s(groups: int) -> float:
    """Of one token of each of so many groups."""
    return FULL_STEP_S * (1 + groups / GROUPS) / 2


@dataclass
class Running:
    task: Task
    version: Version
    length: int
    left: float


class Sleeper(threading.Thread):
    """A worker that lets `slots` groups grow; `length_of` knows how long each becomes."""

    def __init__(self, queue: Queue, name: str, slots: int, length_of: Callable[[Task], int]) -> None:
        super().__init__(name=name, daemon=True)
        self.error: BaseException | None = None
        self._queue = queue
        self._slots = slots
        self._length_of = length_of
        self._running: list[Running] = []
        self._cursor = "0-0"
        self._since = 0.0
        self._closed = threading.Event()

    def run(self) -> None:
        try:
            while not self._closed.is_set():
                self._lease()
                self._grow()
                self._complete()
        except BaseException as error:
            self.error = error

    def close(self) -> None:
        self._closed.set()

    def _lease(self) -> None:
        free = self._slots - len(self._running)
        if free:
            lease = self._queue.lease(self.name, self._served(), free)
            self._pass_time()
            for task in lease.tasks:
                length = self._length_of(task)
                assert lease.published is not None
                self._running.append(Running(task, lease.published.version, length, float(length)))

    def _grow(self) -> None:
        """Until the next group ends; or until there may be more to lease, if there is room."""
        until_s = min((one.left for one in self._running), default=500) * step_s(len(self._running))
        if len(self._running) == self._slots:
            self._closed.wait(until_s)
        else:
            self._cursor = self._queue.wait(self._cursor, until_s, kinds=("admitted", "returned"))
        self._pass_time()

    def _pass_time(self) -> None:
        now = time.monotonic()
        for one in self._running:
            one.left -= (now - self._since) / step_s(len(self._running))
        self._since = now

    def _complete(self) -> None:
        ended = [one for one in self._running if one.left <= 0]
        self._running = [one for one in self._running if one.left > 0]
        if ended:
            groups = [group_of(one.task, self.name, one.version, one.length) for one in ended]
            self._queue.complete(self.name, groups)

    def _served(self) -> Version:
        published = self._queue.published()
        return published.version if published else Version(0, 0)


def group_of(task: Task, worker: str, version: Version, length: int) -> Group:
    sample = Sample(np.zeros(length, np.int32), np.zeros(length, np.float32), (Span(0, version.number),), 1.0, "stop")
    prompt = np.zeros(8, np.int32)
    return Group(task.id, task.set, task.epoch, task.index, task.attempt, worker, version.lineage, prompt, (sample,))


# The learner ----------------------------------------------------------------------------------------------------------


class Trainer:
    """Trains nothing, in `TRAIN_S`; groups of one update may come from several queues."""

    def __init__(self, queues: Sequence[Queue]) -> None:
        self.queues = queues
        self.idle_s = 0.0
        self.version = Version(0, 0)

    def begin(self) -> None:
        for queue in self.queues:
            lineage = queue.resume().lineage
            self.version = Version(lineage, 0)
        self._publish()

    def update(self, sizes: Sequence[int], train_s: float, look: Callable[[], None] = lambda: None) -> None:
        """One update on `sizes` groups of each queue."""
        began = time.monotonic()
        taken = [self._gather(queue, size, look) for queue, size in zip(self.queues, sizes, strict=True)]
        self.idle_s += time.monotonic() - began
        time.sleep(train_s)
        self.version = self.version._replace(number=self.version.number + 1)
        for queue, ids in zip(self.queues, taken, strict=True):
            queue.advance(self.version.lineage, self.version.number, len(ids), 8.0)
            queue.commit(self.version.lineage, f"{self.version}", ids)
        self._publish()

    def _gather(self, queue: Queue, size: int, look: Callable[[], None]) -> list[str]:
        ids: list[str] = []
        give_up, cursor = time.monotonic() + DEADLINE_S, "0-0"
        while len(ids) < size:
            look()
            if time.monotonic() > give_up:
                raise TimeoutError(f"{len(ids)} of {size} groups within {DEADLINE_S:.0f} s: {queue.status()}")
            ids += [group.task for group in queue.drain(self.version.lineage, size - len(ids)).groups]
            if len(ids) < size:
                cursor = queue.wait(cursor, 1.0, kinds=("completed",))
        return ids

    def _publish(self) -> None:
        for queue in self.queues:
            queue.publish(self.version.lineage, Published(self.version, "manifest", "digest"))


# Orders ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Measured:
    makespan_s: float
    idle_s: float
    sent_back: int


def in_order(client: "redis.Redis", run: str, trace: Trace, policy: QueuePolicy) -> Measured:
    """As the queue hands the second epoch out by this policy."""
    queue, size = Queue(client, run), len(trace.now)
    queue.configure(replace(policy, s=0))
    submit(queue, "p", size, epochs=2)
    trainer = Trainer([queue])
    trainer.begin()
    for _ in range(size // BATCH):  # the first epoch, in no time
        tasks = queue.lease("teacher", trainer.version, BATCH).tasks
        queue.complete("teacher", [group_of(one, "teacher", trainer.version, trace.before[one.index]) for one in tasks])
        trainer.update((BATCH,), train_s=0.0)
    queue.configure(policy)
    crew = [Sleeper(queue, f"w{number}", GROUPS, lambda task: trace.now[task.index]) for number in range(WORKERS)]
    return timed(trainer, crew, ((BATCH,) for _ in range(size // BATCH)))


def designated(client: "redis.Redis", run: str, trace: Trace, policy: QueuePolicy) -> Measured:
    """The groups of each update shared out between two queues, each of them served longest first."""
    queues = [Queue(client, f"{run}-{name}") for name in ("rest", "long")]
    trainer, places = Trainer(queues), dict[str, int]()
    for queue in queues:
        queue.configure(policy)
    trainer.begin()

    def share_out(first: int) -> Sequence[int]:
        prompts = sorted(range(first, first + BATCH), key=trace.before.__getitem__, reverse=True)
        long = share([trace.before[prompt] for prompt in prompts])
        for queue, part in zip(queues, (prompts[long:], prompts[:long]), strict=True):
            places.update({f"{queue.run}/{first}/{index}": prompt for index, prompt in enumerate(part)})
            submit(queue, str(first), len(part))
        return BATCH - long, long

    def updates() -> Iterator[Sequence[int]]:
        """S updates ahead, as the queue admits them."""
        sizes: list[Sequence[int]] = []
        for number in range(len(trace.now) // BATCH):
            while len(sizes) <= min(number + policy.s, len(trace.now) // BATCH - 1):
                sizes.append(share_out(BATCH * len(sizes)))
            yield sizes[number]

    def worker(queue: Queue, name: str, slots: int) -> Sleeper:
        return Sleeper(queue, name, slots, lambda task: trace.now[places[f"{queue.run}/{task.set}/{task.index}"]])

    rest = [worker(queues[0], f"w{number}", GROUPS) for number in range(WORKERS - 1)]
    return timed(trainer, [*rest, worker(queues[1], "long", DESIGNATED)], updates())


def share(lengths: Lengths) -> int:
    """How many of these, longest first, the designated worker should take for both sides to end together."""

    def ends_s(long: int) -> float:
        alone = max(lengths[0], sum(lengths[:long]) / DESIGNATED) * step_s(DESIGNATED)
        return max(alone, sum(lengths[long:]) * step_s(GROUPS) / (GROUPS * (WORKERS - 1)))

    return min(range(1, len(lengths)), key=ends_s)


def submit(queue: Queue, name: str, size: int, epochs: int = 1) -> None:
    queue.declare(PromptSet(name, "a trace", epochs=epochs), [Chunk(0, 0, size)])
    queue.submit(name, 0, Shard("none", 0, size))


def timed(trainer: Trainer, crew: Sequence[Sleeper], updates: Iterable[Sequence[int]]) -> Measured:
    """All updates, with these workers from the first on."""

    def look() -> None:
        for worker in crew:
            if worker.error is not None:
                raise worker.error

    began, trainer.idle_s = time.monotonic(), 0.0
    for worker in crew:
        worker.start()
    try:
        for sizes in updates:
            trainer.update(sizes, TRAIN_S, look)
        return Measured(time.monotonic() - began, trainer.idle_s, sum(map(sent_back, trainer.queues)))
    finally:
        for worker in crew:
            worker.close()
        for worker in crew:
            worker.join(DEADLINE_S)


def sent_back(queue: Queue) -> int:
    counts = queue.status().counts
    return sum(counts.get(cause, 0) for cause in ("cancelled", "late", "late_completion"))


def bound_s(trace: Trace, s: int) -> float:
    """What no order can beat: at S = 0 update by update, else of the whole trace."""

    def work_s(lengths: Lengths) -> float:
        return max(sum(lengths) * step_s(GROUPS) / (WORKERS * GROUPS), max(lengths) * step_s(1))

    batches = [trace.now[first : first + BATCH] for first in range(0, len(trace.now), BATCH)]
    if s == 0:
        return sum(work_s(batch) + TRAIN_S for batch in batches)
    return max(work_s(trace.now), (len(batches) - 1) * TRAIN_S) + TRAIN_S


# ----------------------------------------------------------------------------------------------------------------------


Case = tuple[Trace, int, str]


def measure(cases: Sequence[Case], rounds: int, client: "redis.Redis") -> list[Row]:
    """Round by round, so that what else the machine does falls on all cases alike."""
    runs: list[list[Measured]] = [[] for _ in cases]
    for number in range(rounds):
        for place, (trace, s, order) in enumerate(cases):
            policy = QueuePolicy(s, BATCH, lease_ms=600_000, pace=False, longest_first=order != "plain")
            how = designated if order == "designated" else in_order
            runs[place].append(how(client, f"case-{place}-{number}", trace, policy))
    return [row_of(case, measured) for case, measured in zip(cases, runs, strict=True)]


def row_of(case: Case, runs: Sequence[Measured]) -> Row:
    trace, s, order = case
    makespan_s = statistics.median(run.makespan_s for run in runs)
    idle_share = statistics.median(run.idle_s / run.makespan_s for run in runs)
    return Row(trace.name, s, order, makespan_s, bound_s(trace, s), idle_share, sum(run.sent_back for run in runs))


def targets(rows: Sequence[Row]) -> dict[str, bool]:
    """The default order is never slower than plain order by more than two parts in a hundred, and faster at S = 0."""
    made = {(row.trace, row.s, row.order): row.makespan_s for row in rows}
    ratios = {key: made[key] / made[key[0], key[1], "plain"] for key in made if key[2] == "longest first"}
    return {
        "longest first shortens each trace at S = 0": all(ratio < 1 for (_, s, _), ratio in ratios.items() if s == 0),
        "it costs no more than 2 % at S = 4": all(ratio < 1.02 for (_, s, _), ratio in ratios.items() if s == 4),
    }


def table(rows: Sequence[Row]) -> str:
    head = "| trace | S | order | makespan | / bound | learner idle | sent back |\n" + "| --- " * 7 + "|"
    body = (
        f"| {row.trace} | {row.s} | {row.order} | {row.makespan_s:.2f} s | {row.makespan_s / row.bound_s:.2f} "
        f"| {row.idle_share:.1%} | {row.sent_back} |"
        for row in rows
    )
    return "\n".join((head, *body))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    orders = ("plain", "longest first", "designated")
    cases = [(trace, s, order) for trace in (recorded(), heavy_tailed()) for s in (0, 4) for order in orders]
    with TemporaryDirectory() as directory:
        server = RedisServer(Path(directory))
        server.start()
        try:
            with server.client() as client:
                Queue(client, "install").install()
                rows = measure(cases, arguments.rounds, client)
        finally:
            server.stop()
    held = targets(rows)
    print(table(rows))
    return conclude(rows, held, as_json=arguments.json)


if __name__ == "__main__":
    sys.exit(main())
