"""One machine of the fleet: a rollout worker with a paced engine, in a process of its own.

It counts the tokens it samples in a file, which can be read even after the process was killed.
"""

import logging
import mmap
import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from transformers.utils.logging import disable_progress_bar

from benchmarks.fleet.plan import COUNT, Plan
from benchmarks.fleet.trace import Trace
from echo_queue.config import Config, Preemption
from echo_queue.config.loading import load
from echo_queue.records import PartialSample, Version
from workers.engines import SampleKey, SampleRequest
from workers.engines.transformers.engine import TransformersEngine
from workers.environments.scorer import Scorer
from workers.preemption import watch
from workers.shutdown import Shutdown, on_signals
from workers.worker import work

POLL_S = 0.1


class PacedEngine(TransformersEngine):
    """The transformers engine at a fixed pace; it ends each sample at the length that the trace says."""

    def __init__(self, config: Config, folder: str, version: Version, plan: Plan, name: str) -> None:
        longest = config.model.max_prompt_tokens + config.model.max_new_tokens
        super().__init__(folder, version, config.model.dtype, longest)
        self._trace = Trace.read(plan.trace)
        self._step_s = plan.step_s
        self._due_s, self._goes_on = 0.0, False
        self._steps, self._late_s = 0, 0.0
        with (plan.counts / name).open("r+b") as file:
            self._count = mmap.mmap(file.fileno(), COUNT.size)

    def add(self, requests: Sequence[SampleRequest]) -> None:
        super().add([request._replace(limit=self._length(request.key)) for request in requests])

    def step(self) -> Mapping[SampleKey, PartialSample]:
        self._due_s = self._next_due_s()
        ended = super().step()
        self._steps += 1
        COUNT.pack_into(self._count, 0, self.sampled, self._steps, round(1e6 * self._late_s))
        time.sleep(max(0.0, self._due_s - time.monotonic()))
        self._goes_on = self.running > 0
        return {key: replace(partial_sample, finish="stop") for key, partial_sample in ended.items()}

    def _next_due_s(self) -> float:
        """Returns when the next step ends. What the worker does between two steps does not slow their pace."""
        now_s, due_s = time.monotonic(), self._due_s + self._step_s
        if not self._goes_on:
            return now_s + self._step_s
        self._late_s += max(0.0, now_s - due_s)
        return max(now_s, due_s)

    def _length(self, key: SampleKey) -> int:
        return self._trace.lengths(int(key.task.rpartition("/")[2]))[key.sample]


def run_machine(config_path: Path, name: str, plan: Plan, notice: Path, boot_s: float) -> None:
    """Runs a worker that starts after `boot_s` and leaves once the file `notice` exists. It prints into a log."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    time.sleep(boot_s)
    output = os.open(notice.with_suffix(".log"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s {name} %(name)s: %(message)s", stream=sys.stderr)
    disable_progress_bar()  # its locks would outlive a process that is killed
    shutdown = Shutdown()
    on_signals(shutdown)
    watch(Preemption(watch="file", file=notice, poll_s=POLL_S), shutdown)
    work_at_pace(load(config_path), name, plan, shutdown)


def work_at_pace(config: Config, name: str, plan: Plan, shutdown: Shutdown) -> None:
    """Runs a rollout worker with a paced engine until the run is finished or `shutdown` is set."""
    scorer = Scorer(config.environment)
    try:
        work(
            config,
            name,
            [scorer],
            shutdown,
            lambda _, folder, version, __: PacedEngine(config, folder, version, plan, name),
        )
    finally:
        scorer.close()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None, "a machine belongs to a fleet"
    parent.join()
    os._exit(1)
