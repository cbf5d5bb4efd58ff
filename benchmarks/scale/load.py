"""The load of one measurement, the run that it makes, and the processes that are told of it."""

import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

import numpy as np
import orjson
import redis

from echo_queue.config import Config
from echo_queue.launch.servers.server_process import HOST
from echo_queue.queue import Caller
from echo_queue.records import Group, Sample, Span, Task, Version
from echo_queue.records.validation import GroupLimits

RUN, SET = "scale", "set"
SAMPLES, PROMPT_TOKENS, NEW_TOKENS = 8, 256, 1000
"""A group of 64 KiB: a token and its log-probability take 8 bytes."""
VOCABULARY = 150_000
ENDED_S = 60.0


@dataclass(frozen=True)
class Load:
    """W `workers` that wait, and `rate` groups per second through the queue in updates of `batch` groups.

    `groups`: each worker generates at most so many at once, each for `generation_s` on average. `beats`: workers send
    heartbeats and renew their leases. `joins`: they ask for peers at each new version. `fetch_s`: the longest that it
    takes them to have it.
    """

    port: int
    workers: int
    rate: float
    batch: int
    groups: int
    generation_s: float
    beats: bool
    joins: bool
    fetch_s: float = 1.0

    @classmethod
    def read(cls, text: str) -> Self:
        return cls(**orjson.loads(text))

    def written(self) -> str:
        return orjson.dumps(asdict(self)).decode()

    @property
    def staleness(self) -> int:
        """The least S that lets so many groups be generated at once, and one batch more be ready."""
        return round(2 * self.rate * self.generation_s / self.batch) + 2

    @property
    def admitted(self) -> int:
        """The most groups that are admitted and not yet trained."""
        return (self.staleness + 1) * self.batch


def configuration(batch: int, staleness: int) -> Config:
    """Returns the configuration of a run whose groups have 64 KiB."""
    return Config.model_validate(
        {
            "run": {"name": RUN, "dir": f"runs/{RUN}"},
            "model": {"base": "none", "max_prompt_tokens": PROMPT_TOKENS, "max_new_tokens": NEW_TOKENS},
            "rollout": {"group_size": SAMPLES},
            "learner": {"batch_groups": batch},
            "staleness": {"s": staleness, "pace": False},
        }
    )


def limits(config: Config) -> GroupLimits:
    return GroupLimits.of(config, VOCABULARY)


class GroupMaker:
    """Makes groups of the measured size. Their contents are random, and those of one maker alike."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self._prompt = rng.integers(0, VOCABULARY, PROMPT_TOKENS, dtype=np.int32)
        self._tokens = [rng.integers(0, VOCABULARY, NEW_TOKENS, dtype=np.int32) for _ in range(SAMPLES)]
        self._logprobs = [-rng.random(NEW_TOKENS, dtype=np.float32) for _ in range(SAMPLES)]

    def group(self, task: Task, worker: str, version: Version) -> Group:
        """Returns the group of `task` that `worker` generated with weights of `version`."""
        samples = tuple(
            Sample(tokens, logprobs, (Span(0, version.number),), float(number % 2), "length")
            for number, (tokens, logprobs) in enumerate(zip(self._tokens, self._logprobs, strict=True))
        )
        return Group(
            task.id, task.set, task.epoch, task.index, task.attempt, worker, version.lineage, self._prompt, samples
        )


class Child:
    """A process of `module` with `load`. Each line that it is told is answered by one.

    It ends with its `with` block.
    """

    def __init__(self, module: str, load: Load, *descriptors: int) -> None:
        words = (sys.executable, "-m", module, load.written(), *map(str, descriptors))
        self._process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=descriptors, text=True
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, line: str) -> Any:
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise SystemExit(f"a process of the load ended with {self._process.wait(ENDED_S)}")
        return orjson.loads(answer)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.communicate()


def answer(figures: Any) -> None:
    """Answers the parent's line, in a child."""
    print(orjson.dumps(figures).decode(), flush=True)


def caller(load: Load) -> Caller:
    return Caller(redis.Redis(HOST, load.port, protocol=2), RUN)


def end_process(failed: threading.ExceptHookArgs) -> None:
    """Ends this process, and with it the measurement, when any thread of it fails."""
    threading.__excepthook__(failed)
    os._exit(1)


def percentiles(values: Sequence[float]) -> tuple[float, float, float]:
    """Returns median, 99th percentile and maximum; zeros if there is no value."""
    return tuple(round(float(one), 2) for one in np.percentile(values, (50, 99, 100))) if len(values) else (0.0,) * 3  # type: ignore[return-value]
