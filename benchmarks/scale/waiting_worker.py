"""A worker without engine, weights and prompts: the loops of its real threads over the queue.

`WeightWatcher.run`, `TaskLeaser.run` and `LeaseKeeper.run` are those of `workers`; what they wait for and in which
words is theirs. The stand-ins here take the place of what sends nothing to Redis. A group is "generated" by waiting,
then the task is handed to the process that completes it (`completers.py`).
"""

import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Protocol, cast

import numpy as np
import redis

from benchmarks.scale.load import Load
from echo_queue.config import Config
from echo_queue.queue import Caller, Heartbeat, Peer, PeerDirectory, WorkerQueue
from echo_queue.queue.rhythm import room_for
from echo_queue.records import BASE, PromptRow, Published, Task, Version
from echo_queue.submission.shards import ShardReader
from workers.held_leases import HeldLeases
from workers.lease_keeper import LeaseKeeper, Place, Scoring
from workers.leaser import TaskLeaser
from workers.prompt_encoder import PromptEncoder
from workers.weights.fetch import FetchedVersion, VersionFetcher
from workers.weights.weight_watcher import WeightWatcher

POLL_S = 0.05
PROMPT = np.zeros(1, dtype=np.int32)
Complete = Callable[[str, Version, Task], None]


class Loops(Protocol):
    """The means that runs a worker's loops: a hub, or threads of their own."""

    def spawn(self, loop: Callable[[], object]) -> None:
        """Begins a loop."""

    def sleep(self, seconds: float) -> None:
        """Holds up the loop that calls it."""


class Stage:
    """Stands in for `workers.weights.staging.Stage`: nothing else uses it, so nobody waits for it."""

    def wait_turn(self, wanted: Callable[[], bool]) -> bool:
        return True

    def release(self) -> None:
        pass


class Fetcher:
    """Stands in for `VersionFetcher`: a version arrives after a while, from peers that the queue named."""

    def __init__(self, loops: Loops, load: Load, directory: PeerDirectory, peer: Peer) -> None:
        self.stage = Stage()
        self.on_staged: Callable[[Published], object] = lambda published: None
        self._loops, self._load, self._directory, self._peer = loops, load, directory, peer

    def fetch(self, published: Published) -> FetchedVersion:
        if self._load.joins:
            self._directory.join(self._peer, f"weights/{published.version.lineage}/{published.version.number}/delta")
        self._loops.sleep(random.uniform(0, self._load.fetch_s))
        return FetchedVersion(published, cast(Any, None), (), {})

    def apply(self, fetched: FetchedVersion) -> None:
        self.on_staged(fetched.published)


class WaitingWorker:
    """One worker `name`. `complete` hands over a task whose group is whole."""

    def __init__(
        self, loops: Loops, client: redis.Redis, config: Config, *, name: str, load: Load, complete: Complete
    ) -> None:
        caller = Caller(client, config.run.name)
        self._loops, self._name, self._load, self._complete = loops, name, load, complete
        self._held, self._serving = HeldLeases(), BASE
        self._engine = SimpleNamespace(name="waiting", version=BASE, sampled=0)
        queue = self._queue = WorkerQueue(caller)
        self._leaser = TaskLeaser(
            config,
            name,
            queue,
            prompts=cast(PromptEncoder, SimpleNamespace(encode=lambda row: PROMPT)),
            shards=cast(ShardReader, SimpleNamespace(row=lambda task: PromptRow("", {}))),
            held=self._held,
            serving=lambda: self._serving,
        )
        self._keeper = LeaseKeeper(
            queue,
            name,
            cast(Any, self._engine),
            self._held,
            every_s=config.telemetry.heartbeat_s,
            accepted=lambda: 0,
            generation_s=tuple,
            scoring=lambda: Scoring(0.0, 0),
            fetched={},
            obey=lambda order: None,
            place=Place("", name),
        )
        fetcher = Fetcher(loops, load, PeerDirectory(caller), Peer(name, "default", f"{name}:1", rate=1_000_000))
        fetcher.on_staged = self._serve
        self._watcher = WeightWatcher(queue, cast(VersionFetcher, fetcher), None)

    def start(self) -> None:
        """Begins the worker's loops. The list of workers tells it how large the fleet is."""
        self._queue.heartbeat(self._name, Heartbeat(self._engine.name, BASE, "waiting"))
        self._loops.spawn(self._watcher.run)
        self._loops.spawn(self._leaser.run)
        self._loops.spawn(self._loop)
        if self._load.beats:
            self._loops.spawn(self._keeper.run)

    def _serve(self, published: Published) -> None:
        self._serving = self._engine.version = published.version
        if self._load.beats:
            self._keeper.serve(published, 0.0)

    def _loop(self) -> None:
        """Acts as `RolloutLoop`'s thread does towards the leaser."""
        while not self._leaser.finished:
            self._leaser.check()
            self._keeper.check()
            self._watcher.check()
            for leased in self._leaser.exchange(room_for(self._load.groups, len(self._held))):
                for assignment in leased.assignments:
                    self._begin(assignment.task)
            self._leaser.wake.wait(1.0)
            self._leaser.wake.clear()

    def _begin(self, task: Task) -> None:
        self._loops.spawn(lambda: self._generate(task))

    def _generate(self, task: Task) -> None:
        self._loops.sleep(self._load.generation_s * random.uniform(0.5, 1.5))
        if self._held.drop([task]):
            self._complete(self._name, self._serving, task)
        self._leaser.wake.set()
