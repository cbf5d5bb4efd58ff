"""The gain of beginning the longest groups first: makespan and the learner's idle time, through the real queue.

- Nothing is generated and no thread sleeps: workers and the learner follow a simulated clock
  (`echo_queue.capacity.simulation`), while their calls to the queue are real. A run thus takes a second and has the
  same result each time.
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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import numpy as np
import orjson
import redis

from benchmarks.rows import Rows
from benchmarks.verdict import conclude
from echo_queue.capacity.simulation.learner import LearnerTimes
from echo_queue.capacity.simulation.machine import SimulatedMachine
from echo_queue.capacity.simulation.world import Events, SimulatedPool, World
from echo_queue.queue import Caller, Chunk, LearnerQueue, Operator, PromptSet, RunRules, SubmitterQueue, WorkerQueue
from echo_queue.records import BASE, Group, PromptShard, Published, Task, Version
from tests.capacity.simulation.real_queue import RealQueue, group_sample, simulated_server

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


# A run ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Measured:
    makespan_s: float
    idle_s: float
    sent_back: int


def run(client: "redis.Redis", name: str, trace: Trace, s: int, order: str) -> Measured:
    caller, size = Caller(client, name), len(trace.now)
    operator, submitter = Operator(caller), SubmitterQueue(caller)
    rules = RunRules(s, BATCH, lease_ms=600_000, pace=False, longest_first=order != "plain")
    operator.configure(replace(rules, s=0))
    epochs = 1 if order in ("plain", "bucket") else 2
    submitter.declare(PromptSet("p", "a trace", epochs=epochs), [Chunk(0, 0, size)])
    submitter.submit("p", 0, PromptShard("none", 0, size), trace.buckets if order == "bucket" else b"")
    begins = BASE
    if epochs == 2:  # the first takes no time
        begins = complete_first_epoch(caller, replace(rules, s=0), trace.now if order == "told" else trace.before)
    queue = RealQueue(client, name, rules, begins, trace.now)
    last = begins.number + len(trace.batches)

    def most(machine: SimulatedMachine) -> int:
        if order != "designated" or not machine.rollouts:
            return GROUPS
        first = BATCH * (world.learner.version - begins.number)
        longest = max(trace.before[rollout.leased.prompt] for rollout in machine.rollouts.values())
        return slots_beside(longest, trace.before[first : first + BATCH * (1 + s)], trace.steps_s)

    workers = SimulatedPool("w", WORKERS, trace.steps_s)
    events = Events(lambda prompt: float(trace.now[prompt]))
    times = LearnerTimes(trace.train_s, publish_s=0.0, kappa=1)
    world = World(queue, rules, times, [workers], events, begin=begins.number, most=most)
    world.run(last)
    counts = queue.counts()
    return Measured(world.clock.now_s, world.clock.now_s - world.tally.train_s, counts.late + counts.cancelled)


def complete_first_epoch(caller: Caller, rules: RunRules, lengths: Lengths) -> Version:
    """Completes the first epoch, from which the queue learns the lengths. Returns the learner's version after it."""
    workers, learner = WorkerQueue(caller), LearnerQueue(caller)
    version = Version(learner.resume(rules, BASE).lineage, 0)
    for _ in range(len(lengths) // BATCH):
        learner.publish(Published(version, "manifest", "digest"))
        tasks = workers.lease("teacher", version, BATCH).tasks
        groups = [group_of(task, version, lengths[task.index]) for task in tasks]
        workers.complete("teacher", groups)
        drained = [group.task for group in learner.drain(BATCH).groups]
        version = version._replace(number=version.number + 1)
        learner.advance(version.number, len(drained), 2.0)
        learner.commit(f"{version}", drained)
    return version


def group_of(task: Task, version: Version, length: int) -> Group:
    prompt, sample = np.zeros(8, np.int32), group_sample(length, version.number)
    return Group(task.id, task.set, task.epoch, task.index, 0, "teacher", version.lineage, prompt, (sample,))


def bound_s(trace: Trace, s: int) -> float:
    """Returns the bound that no order can beat: at S = 0 update by update, else for the whole trace."""

    def work_s(lengths: Lengths) -> float:
        return max(sum(lengths) * trace.steps_s[-1] / (WORKERS * GROUPS), max(lengths) * trace.steps_s[0])

    if s == 0:
        return sum(work_s(batch) + trace.train_s for batch in trace.batches)
    return max(work_s(trace.now), (len(trace.batches) - 1) * trace.train_s) + trace.train_s


# ----------------------------------------------------------------------------------------------------------------------


def measure(client: "redis.Redis", rows: Rows) -> Iterator[Row]:
    for traces in ([recorded()], [heavy_tailed(seed) for seed in range(1, SEEDS + 1)]):
        for s, order in product((0, 4), ORDERS):
            with rows.row(f"{traces[0].name}, S = {s}, {order}"):
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


HEAD = "| trace | S | order | makespan | / bound | learner idle | sent back |\n" + "| --- " * 7 + "|"


def line(row: Row) -> str:
    return (
        f"| {row.trace} | {row.s} | {row.order} | {row.makespan_s:.3g} s | {row.makespan_s / row.bound_s:.2f} "
        f"| {row.idle_share:.1%} | {row.sent_back} |"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    rows, found = Rows(), list[Row]()
    print(HEAD, flush=True)
    with simulated_server() as client:
        for row in measure(client, rows):
            found.append(row)
            print(line(row), flush=True)
    return conclude(found, rows.promises or targets(found), as_json=arguments.json)


if __name__ == "__main__":
    sys.exit(main())
