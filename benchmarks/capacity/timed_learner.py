"""A learner that trains nothing but takes its time: it gathers, trains, advances and publishes as the real one does.

Publications go on beside training, and take at least a given time, as over a slow link. The real housekeeper sweeps.
"""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor

from benchmarks.fleet.run import NUDGE, Run
from echo_queue.queue import Caller, Status, staleness_rules
from echo_queue.queue.pool_status import arrival_of
from echo_queue.records import Version
from learner.housekeeper import Housekeeper

LISTEN_S, OWED_S = 1.0, 0.02
"""The longest waits for groups, as in `learner/batch_collector.py`; the second while a publication is owed."""


@dataclass(frozen=True)
class Pace:
    """`train_s`: seconds of an update. `publish_s`: the least seconds of a publication. `kappa`: its period."""

    train_s: float
    publish_s: float
    kappa: int


@dataclass
class TimedLearner:
    """The learner of `run`, whose base version is published.

    `ask_ahead` is called with each version right before it is published.

    `publish_s` has the seconds of each publication. `fetch_s`: after each update, the median worker's seconds from the
    publication of its version until it served it.
    """

    run: Run
    pace: Pace
    tensors: dict[str, Tensor]
    ask_ahead: Callable[[Version], None] = lambda version: None
    version: int = 0
    window: float = 2.0
    lags: list[int] = field(default_factory=list)
    publish_s: list[float] = field(default_factory=list)
    fetch_s: list[float] = field(default_factory=list)
    _pool: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1))
    _publishing: "Future[None] | None" = None
    _handed_over: int = 0
    _batch: list[tuple[str, int]] = field(default_factory=list)
    _short_since: float | None = None
    _cursor: str = "0-0"

    def update(self, deadline_s: float) -> list[int]:
        """Makes one update. Returns the prompts that it trained, by their numbers.

        Raises `TimeoutError` if its groups have not come by the deadline.
        """
        starved_s, ready = self._gather(time.monotonic() + deadline_s)
        prompts = [int(task.rpartition("/")[2]) for task, _ in self._batch]
        time.sleep(self.pace.train_s)
        self._update(starved_s, ready)
        return prompts

    def close(self) -> None:
        """Waits for a publication that is under way."""
        self._pool.shutdown()

    def _gather(self, give_up_s: float) -> tuple[float, int]:
        """Returns how long there were too few groups, and how many are ready beside the batch."""
        queue, lineage = self.run.harness.queue, self.run.harness.lineage
        size = self.run.harness.config.learner.batch_groups
        while True:
            drained = queue.drain(lineage, size - len(self._batch))
            self._batch += [(group.task, group.oldest) for group in drained.groups]
            now_s = time.monotonic()
            if len(self._batch) == size:
                break
            self._short_since = self._short_since or now_s
            if now_s > give_up_s:
                raise TimeoutError(f"{len(self._batch)} of {size} groups for version {self.version + 1}")
            self._publish_if_due()
            owed = self.version - self._handed_over >= self.pace.kappa
            self._cursor = queue.wait_for_groups(self._cursor, OWED_S if owed else LISTEN_S)
        short_since, self._short_since = self._short_since, None
        return (now_s - short_since if short_since else 0.0), drained.ready

    def _update(self, starved_s: float, ready: int) -> None:
        harness = self.run.harness
        self.lags += [self.version - oldest for _, oldest in self._batch]
        self.version += 1
        train_s, rules = self.pace.train_s, harness.rules
        self.window = staleness_rules.pace(self.window, starved_s, train_s, ready, rules.batch, widest=rules.s + 1)
        harness.queue.advance(harness.lineage, self.version, len(self._batch), self.window)
        self._publish_if_due()
        harness.queue.commit(harness.lineage, f"after {self.version}", [task for task, _ in self._batch])
        self._batch = []
        beats = [worker.heartbeat for worker in harness.status().workers if worker.heartbeat is not None]
        if arrival := arrival_of(beats):
            self.fetch_s.append(arrival.p50_s)

    def _publish_if_due(self) -> None:
        if self._publishing and self._publishing.done():
            self._publishing.result()
            self._publishing = None
        if self._publishing is None and self.version - self._handed_over >= self.pace.kappa:
            self._handed_over = self.version
            self.tensors = {name: one + NUDGE * torch.randn_like(one) for name, one in self.tensors.items()}
            self._publishing = self._pool.submit(self._publish, self.version, self.tensors)

    def _publish(self, version: int, tensors: dict[str, Tensor]) -> None:
        began_s = time.monotonic()
        time.sleep(self.pace.publish_s)
        self.ask_ahead(Version(self.run.harness.lineage, version))
        self.run.harness.publish(version, tensors)
        self.publish_s.append(time.monotonic() - began_s)


@contextmanager
def timed(
    run: Run, pace: Pace, tensors: dict[str, Tensor], observe: Callable[[Status], None] = lambda status: None
) -> Iterator[TimedLearner]:
    """Yields the learner of a run, with its housekeeper, which calls `observe`; both have ended afterwards."""
    harness = run.harness
    caller = Caller.connect(harness.config, "learner")
    housekeeper = Housekeeper(caller, harness.store, harness.config.queue.lease_s, observe)
    learner = TimedLearner(run, pace, tensors)
    housekeeper.start()
    try:
        yield learner
    finally:
        housekeeper.close()
        learner.close()
