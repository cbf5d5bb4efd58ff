"""A run for a fleet: services, prompts, and a learner that drains, publishes and trains nothing."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from tests.waiting import wait_until
from tests.workers.small import save_model
from tests.workers.worker_harness import WorkerHarness, tensors_of

READY_S = 120.0
NUDGE = 1e-3
"""Standard deviation of what an update adds to each weight."""


class Run:
    """A run in `directory`, with a small random model whose samples never end by themselves."""

    def __init__(self, directory: Path, settings: dict[str, dict[str, Any]]) -> None:
        folder = save_model(directory / "base", seed=0, stop=False)
        environment = {"kind": "function", "function": "tests.workers.rewards:counts_ids"}
        self.harness = WorkerHarness(directory, folder, environment=environment, **settings)
        self.version = 0
        self.groups = 0
        self.tokens = 0
        """The number of tokens in the groups drained."""
        self._tensors = tensors_of(folder)
        self._batch: list[str] = []

    def begin(self) -> None:
        """Starts the learner, before there are any prompts."""
        self.harness.configure()
        self.harness.learner_begins()
        self.harness.publish(0, self._tensors)

    def await_workers(self, number: int) -> None:
        """Waits until `number` workers are ready to lease. Raises `AssertionError` at the deadline."""

        def ready() -> bool:
            beats = [worker.heartbeat for worker in self.harness.status().workers]
            return sum(heartbeat is not None and heartbeat.state == "idle" for heartbeat in beats) >= number

        wait_until(ready, f"{number} idle workers", READY_S)

    def submit(self, groups: int) -> None:
        self.harness.submit([f"What is the sum of {number} and 2?" for number in range(groups)])

    @property
    def lapsed(self) -> int:
        """Returns the number of leases that have run out."""
        return self.harness.status().counts.get("expired", 0)

    def turn(self) -> None:
        """Acts as the learner and its housekeeper: reclaims, drains, and publishes new weights after each batch."""
        queue, lineage, size = self.harness.queue, self.harness.lineage, self.harness.config.learner.batch_groups
        queue.reclaim()
        drained = queue.drain(lineage, size - len(self._batch)).groups
        self.groups += len(drained)
        self.tokens += sum(len(sample.tokens) for group in drained for sample in group.samples)
        self._batch += [group.task for group in drained]
        if len(self._batch) == size:
            self._update()

    def _update(self) -> None:
        self.version += 1
        self._tensors = {name: one + NUDGE * torch.randn_like(one) for name, one in self._tensors.items()}
        self.harness.queue.advance(self.harness.lineage, self.version, len(self._batch), 1.0)
        self.harness.queue.commit(self.harness.lineage, f"after {self.version}", self._batch)
        self.harness.publish(self.version, self._tensors)
        self._batch = []


@contextmanager
def running(directory: Path, settings: dict[str, dict[str, Any]]) -> Iterator[Run]:
    """Yields a run that has begun; nothing of it is left afterwards."""
    run = Run(directory, settings)
    try:
        run.begin()
        yield run
    finally:
        run.harness.end()
