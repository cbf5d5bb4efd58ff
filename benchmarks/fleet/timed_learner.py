"""A learner that trains nothing, but takes its time: it gathers, trains, advances and publishes as the real one does.

Publications go on beside training, and take at least a given time, as over a slow link.
"""

import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor

from benchmarks.fleet.run import NUDGE, Run
from echo_queue.queue import staleness_rules

TURN_S = 0.005
SWEEP_S = 0.25


@dataclass(frozen=True)
class Pace:
    """`train_s`: seconds of an update. `publish_s`: the least seconds of a publication. `kappa`: its period."""

    train_s: float
    publish_s: float
    kappa: int


@dataclass
class TimedLearner:
    """The learner of `run`, whose base version is published. `publish_s` has the seconds of each publication."""

    run: Run
    pace: Pace
    tensors: dict[str, Tensor]
    version: int = 0
    window: float = 2.0
    lags: list[int] = field(default_factory=list)
    publish_s: list[float] = field(default_factory=list)
    _pool: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1))
    _publishing: "Future[None] | None" = None
    _handed_over: int = 0
    _batch: list[tuple[str, int]] = field(default_factory=list)
    _short: bool = False
    _sweep_due: float = 0.0

    def until(self, version: int, deadline_s: float) -> None:
        """Goes on until it has made that version. Raises `TimeoutError` at the deadline."""
        give_up = time.monotonic() + deadline_s
        while self.version < version:
            starved_s, ready = self._gather(give_up)
            self._sleep(self.pace.train_s)
            self._update(starved_s, ready)

    def _gather(self, give_up: float) -> tuple[float, int]:
        """Returns how long there were too few groups, and how many are ready beside the batch."""
        harness, size = self.run.harness, self.run.harness.config.learner.batch_groups
        began = time.monotonic()
        while True:
            drained = harness.queue.drain(harness.lineage, size - len(self._batch))
            self._batch += [(group.task, group.oldest) for group in drained.groups]
            if len(self._batch) == size:
                return (time.monotonic() - began if self._short else 0.0), drained.ready
            self._short = True
            if time.monotonic() > give_up:
                raise TimeoutError(f"{len(self._batch)} of {size} groups for version {self.version + 1}")
            self._publish_if_due()
            self._sleep(TURN_S)

    def _update(self, starved_s: float, ready: int) -> None:
        harness, self._short = self.run.harness, False
        self.lags += [self.version - oldest for _, oldest in self._batch]
        self.version += 1
        rules = harness.rules
        self.window = staleness_rules.pace(
            self.window, starved_s, self.pace.train_s, ready, rules.batch, widest=rules.s + 1
        )
        harness.queue.advance(harness.lineage, self.version, len(self._batch), self.window)
        self._publish_if_due()
        harness.queue.commit(harness.lineage, f"after {self.version}", [task for task, _ in self._batch])
        self._batch = []

    def _publish_if_due(self) -> None:
        if self._publishing and self._publishing.done():
            self._publishing.result()
            self._publishing = None
        if self._publishing is None and self.version - self._handed_over >= self.pace.kappa:
            self._handed_over = self.version
            self.tensors = {name: one + NUDGE * torch.randn_like(one) for name, one in self.tensors.items()}
            self._publishing = self._pool.submit(self._publish, self.version, self.tensors)

    def _publish(self, version: int, tensors: dict[str, Tensor]) -> None:
        began = time.monotonic()
        time.sleep(self.pace.publish_s)
        self.run.harness.publish(version, tensors)
        self.publish_s.append(time.monotonic() - began)

    def _sleep(self, seconds: float) -> None:
        """Sleeps, and sweeps meanwhile as the housekeeper does."""
        ends = time.monotonic() + seconds
        while (left := ends - time.monotonic()) > 0:
            if time.monotonic() > self._sweep_due:
                self.run.harness.queue.reclaim()
                self._sweep_due = time.monotonic() + SWEEP_S
            time.sleep(min(left, SWEEP_S))

    def close(self) -> None:
        self._pool.shutdown()


@contextmanager
def timed(run: Run, pace: Pace, tensors: dict[str, Tensor]) -> Iterator[TimedLearner]:
    """Yields the learner of a run; a publication that is under way ends first."""
    learner = TimedLearner(run, pace, tensors)
    try:
        yield learner
    finally:
        learner.close()
