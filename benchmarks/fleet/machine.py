"""`python -m benchmarks.fleet.machine CONFIG NAME PLAN`: a rollout worker of the fleet, with a paced engine.

It counts what it samples in a file, from which it can be read when the process has been killed.
"""

import logging
import mmap
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.fleet.plan import COUNT, Plan
from benchmarks.fleet.trace import Trace
from echo_queue.config import Config, load
from echo_queue.records import Draft, Version
from workers.engines import Key, Request, Sampling
from workers.engines.transformers import TransformersEngine
from workers.environments.scorer import Scorer
from workers.leaving import Leaving, on_signals
from workers.preemption import watch
from workers.worker import work


class Paced(TransformersEngine):
    """The transformers engine at a fixed pace, which ends each sample where the trace says."""

    def __init__(self, config: Config, folder: str, version: Version, plan: Plan, name: str) -> None:
        longest = config.model.max_prompt_tokens + config.model.max_new_tokens
        sampling = Sampling(config.rollout.temperature, config.rollout.top_p)
        super().__init__(folder, version, config.model.dtype, longest, sampling)
        self._trace = Trace.read(plan.trace)
        self._step_s = plan.step_s
        with (plan.counts / name).open("r+b") as file:
            self._count = mmap.mmap(file.fileno(), COUNT.size)

    def add(self, requests: Sequence[Request]) -> None:
        super().add([request._replace(limit=self._length(request.key)) for request in requests])

    def step(self) -> Mapping[Key, Draft]:
        due = time.monotonic() + self._step_s
        ended = super().step()
        COUNT.pack_into(self._count, 0, self.sampled)
        time.sleep(max(0.0, due - time.monotonic()))
        return {key: replace(draft, finish="stop") for key, draft in ended.items()}

    def _length(self, key: Key) -> int:
        return self._trace.lengths(int(key.task.rpartition("/")[2]))[key.sample]


def main(config_path: Path, name: str, plan_path: Path) -> None:
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s {name} %(name)s: %(message)s", stream=sys.stderr)
    config, plan = load(config_path), Plan.read(plan_path)
    leaving = Leaving()
    on_signals(leaving)
    watch(config.rollout.preemption, leaving)
    scorer = Scorer(config.environment)
    try:
        work(config, name, scorer, leaving, lambda _, folder, version, __: Paced(config, folder, version, plan, name))
    finally:
        scorer.close()


if __name__ == "__main__":
    os.nice(5)  # the queue and the learner come first, as on machines of their own
    main(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
