"""The real queue on the simulated clock: its Lua functions read that clock in place of the server's.

Nothing is generated: a group has one token, or as many as `lengths` says, and none of its bytes means anything. The
server belongs to the simulation alone, since a library that reads another clock is of no use to a run.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import redis

from echo_queue.capacity.simulation import Figures, Scenario, simulate
from echo_queue.capacity.simulation.moves import Counts, DrainedTasks, Leased, tokens_of
from echo_queue.launch.servers.redis_server import RedisServer
from echo_queue.queue import (
    Caller,
    Chunk,
    LearnerQueue,
    Lease,
    Operator,
    Outcome,
    PromptSet,
    RunRules,
    SubmitterQueue,
    WorkerQueue,
    library,
)
from echo_queue.records import (
    BASE,
    NOTHING,
    Group,
    PartialGroup,
    PartialSample,
    PromptShard,
    Published,
    Sample,
    Span,
    Version,
)

CLOCK_KEY = "simulated_ms"
CLOCK = "local time = redis.call('TIME')\n  return time[1] * 1000 + math.floor(time[2] / 1000)"
"""The only place where the queue's functions read the server's clock."""
SIMULATED = f"return tonumber(redis.call('GET', '{CLOCK_KEY}'))"
PROMPT = np.zeros(1, np.int32)


@contextmanager
def simulated_server() -> Iterator["redis.Redis"]:
    """Yields a connection to a server of its own, with the queue's functions on the simulated clock."""
    with TemporaryDirectory() as directory:
        server = RedisServer(Path(directory))
        server.start()
        try:
            with server.client() as client:
                client.config_set("appendfsync", "no")  # the simulated clock has no disk
                load(client)
                yield client
        finally:
            server.stop()


def load(client: "redis.Redis") -> None:
    """Loads the queue's functions, on the simulated clock, which stands at 0."""
    source = library.source()
    if source.count(CLOCK) != 1:
        raise RuntimeError("the queue's functions do not read the clock where the simulation expects it")
    client.function_load(source.replace(CLOCK, SIMULATED), replace=True)
    client.set(CLOCK_KEY, 0)


class RealQueue:
    """The queue of run `run`, which is configured and has prompts.

    It begins a lineage at version `begin`. `lengths`: the number of tokens of each prompt's group, which the queue
    learns from; each has one if there are none.
    """

    def __init__(
        self,
        client: "redis.Redis",
        run: str,
        rules: RunRules,
        begin: Version = BASE,
        lengths: Sequence[int] | None = None,
    ) -> None:
        self._client, self._rules, self._lengths = client, rules, lengths
        caller = Caller(client, run)
        self._workers, self._learner, self._operator = WorkerQueue(caller), LearnerQueue(caller), Operator(caller)
        self._now_s = 0.0
        self._set_clock(0.0)
        self._operator.reclaim()  # the queue's clock begins with its first sweep
        self._lineage = self._learner.resume(rules, begin).lineage
        self._held: dict[str, dict[str, int]] = defaultdict(dict)
        """The version of the oldest token of each task, by the machine that holds it."""
        self._kept: dict[str, tuple[float, PartialSample]] = {}
        """How much is done of each partial rollout that was stored, and the rollout."""

    @property
    def now_s(self) -> float:
        return self._now_s

    @now_s.setter
    def now_s(self, seconds: float) -> None:
        if seconds != self._now_s:
            self._set_clock(seconds)

    def _set_clock(self, seconds: float) -> None:
        self._now_s = seconds
        self._client.set(CLOCK_KEY, round(1000 * seconds))

    @property
    def untrained(self) -> int:
        figures = self._operator.figures()
        return figures.tasks + figures.retry + figures.replay - figures.uncommitted

    def counts(self) -> Counts:
        counts = self._operator.figures().counts
        late = counts.get("late", 0) + counts.get("late_completion", 0)
        return Counts(late, counts.get("cancelled", 0), counts.get("expired", 0), counts.get("buried", 0))

    def lease(self, machine: str, version: int, count: int) -> Sequence[Leased]:
        lease = self._workers.lease(machine, Version(self._lineage, version), count)
        leased = []
        for task in lease.tasks:
            oldest, done = self._continued(task.id, lease)
            leased.append(Leased(task.id, task.index, task.min_pv, oldest, done))
            self._held[machine][task.id] = max(version, task.min_pv) if oldest is None else oldest
        return leased

    def _continued(self, task: str, lease: Lease) -> tuple[int | None, float]:
        """Returns the oldest version of the partial rollout that comes with a task, and how much of it is done."""
        if task not in lease.partials:
            self._kept.pop(task, None)
            return None, 0.0
        done, sample = self._kept[task]
        return sample.spans[0].version, done

    def begin(self, machine: str, task: str, oldest: int) -> bool:
        if task not in self._held[machine] or self._workers.renew(machine, {task: oldest}):
            self._held[machine].pop(task, None)
            return False
        self._held[machine][task] = oldest
        return True

    def keep(self, machine: str, task: str, oldest: int, newest: int, done: float) -> bool:
        length, (_, before) = tokens_of(done), self._kept.get(task, (0.0, NOTHING))
        spans = before.spans or (Span(0, oldest),)
        if newest > spans[-1].version:
            spans = (*spans, Span(max(1, len(before.tokens)), newest))
        sample = PartialSample(np.zeros(length, np.int32), np.zeros(length, np.float32), spans)
        self._kept[task] = done, sample
        return not self._workers.progress(machine, [PartialGroup(task, self._lineage, (sample,))])

    def release(self, machine: str, tasks: Sequence[str]) -> None:
        self._workers.release(machine, tasks)
        for task in tasks:
            self._held[machine].pop(task, None)

    def lose(self, machine: str) -> None:
        self._held.pop(machine, None)

    def complete(self, machine: str, task: str, oldest: int) -> bool:
        self._held[machine].pop(task, None)
        name, epoch, index = task.rsplit("/", 2)
        length = self._lengths[int(index)] if self._lengths else 1
        sample = group_sample(length, oldest)
        group = Group(task, name, int(epoch), int(index), 0, machine, self._lineage, PROMPT, (sample,))
        return self._workers.complete(machine, [group])[0] is Outcome.accepted

    def renew(self) -> Sequence[tuple[str, str]]:
        lost = []
        for machine, held in self._held.items():
            for task in self._workers.renew(machine, held):
                del held[task]
                lost.append((machine, task))
        return lost

    def sweep(self) -> None:
        self._operator.reclaim_all()
        self._operator.admit()

    def drain(self, need: int) -> DrainedTasks:
        drained = self._learner.drain(need)
        return DrainedTasks([group.task for group in drained.groups], drained.ready, drained.late, drained.seats)

    def advance(self, version: int, trained: Sequence[str], window: float) -> None:
        self._learner.advance(version, len(trained), window)
        self._learner.commit(f"{self._lineage}.{version}", trained)
        for task in trained:
            self._kept.pop(task, None)

    def publish(self, version: int) -> None:
        self._learner.publish(Published(Version(self._lineage, version), "manifest", "digest"))


def submit(client: "redis.Redis", run: str, rules: RunRules, prompts: int) -> None:
    """Creates a run with so many prompts, of which nothing is known."""
    caller = Caller(client, run)
    Operator(caller).configure(rules)
    submitter = SubmitterQueue(caller)
    submitter.declare(PromptSet("p", "simulated"), [Chunk(0, 0, prompts)])
    submitter.submit("p", 0, PromptShard("none", 0, prompts))


def group_sample(length: int, version: int) -> Sample:
    tokens, logprobs = np.zeros(length, np.int32), np.zeros(length, np.float32)
    return Sample(tokens, logprobs, (Span(0, version),), 1.0, "stop")


def simulate_really(scenario: Scenario) -> Figures:
    """Simulates a scenario by the real queue, in about a hundred times the time."""
    with simulated_server() as client:
        submit(client, "simulated", scenario.rules, scenario.prompts)
        return simulate(scenario, RealQueue(client, "simulated", scenario.rules))
