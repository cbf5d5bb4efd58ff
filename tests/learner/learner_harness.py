"""A run without generation: real services, a real learner in a process of its own, workers that invent their data."""

import logging
import threading
import time
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Self

import numpy as np
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from echo_queue.config import Config
from echo_queue.connections.connect import connect_store
from echo_queue.connections.storage.object_store import ObjectStore
from echo_queue.errors import EchoQueueError
from echo_queue.launch.servers.serving import Services
from echo_queue.launch.signals import set_on_signals
from echo_queue.queue import Chunk, Heartbeat, Order, PromptSet, RunRules
from echo_queue.records import Group, PromptShard, Sample, Span, Task, Version
from tests.fork_server import PROCESSES
from tests.learner.synthetic import VOCABULARY, tiny_model
from tests.queue.clients import Clients

DEADLINE_S = 180.0
PER_LEASE = 4


class LearnerHarness:
    """Services of one run in `directory`, its tiny base model, and a way to start learners and workers."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._services: Services | None = None
        self._workers: list[SimulatedWorker] = []
        make_base(directory / "base-model")

    def config(self, **sections: Any) -> Config:
        values: dict[str, Any] = {
            "run": {"name": "test", "dir": self.directory / "run"},
            "model": {"base": str(self.directory / "base-model"), "max_prompt_tokens": 256, "max_new_tokens": 64},
            "rollout": {"group_size": 2},
            "staleness": {"s": 2},
            "learner": {"device": "cpu", "batch_groups": 4, "checkpoint_updates": 3, "lr": 1e-3},
            "queue": {"stall_deadline_s": 20.0, "lease_s": 3.0},
        }
        for section, changes in sections.items():
            values[section] = changes if isinstance(changes, list) else values.get(section, {}) | changes
        return Config.model_validate(values)

    def __enter__(self) -> Self:
        self._services = Services(self.config())
        self._services.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close_workers()
        if self._services:
            self._services.stop()

    def queue(self, config: Config) -> Clients:
        return Clients.connected_as(config, "admin")

    def store(self, config: Config) -> ObjectStore:
        return connect_store(config, "learner")

    def submit(
        self, config: Config, prompts: int, name: str = "set", digest: str = "", order: Order = "sequential"
    ) -> None:
        """Submits a set of `prompts` prompts, which no worker reads; `digest` stands for their content."""
        queue = self.queue(config)
        queue.configure(RunRules.of(config))
        queue.declare(PromptSet(name, "made up", order=order), [Chunk(0, 0, prompts, digest)])
        queue.submit(name, 0, PromptShard("nowhere", 0, prompts))

    def work(self, config: Config, **manner: Any) -> "SimulatedWorker":
        worker = SimulatedWorker(config, **manner)
        self._workers.append(worker)
        worker.start()
        return worker

    def close_workers(self) -> None:
        while self._workers:
            self._workers.pop().close()

    def learn(self, config: Config) -> BaseProcess:
        """Starts a learner in a process of its own."""
        process = PROCESSES.Process(target=learn, args=(config,), daemon=True)
        process.start()
        return process


def learn(config: Config) -> None:
    """Does what `python -m learner` does, except for reading the configuration."""
    from learner.training_loop import train

    logging.basicConfig(level=logging.INFO, format="learner: %(message)s")
    stop = threading.Event()
    set_on_signals(stop)
    train(config, stop)


class SimulatedWorker(threading.Thread):
    """Serves new weights at once, unless it keeps its own; completes random tokens, `generation_s` after each lease."""

    def __init__(
        self,
        config: Config,
        name: str = "w1",
        generation_s: float = 0.0,
        vocabulary: int = VOCABULARY,
        longest: int = 5,
        *,
        logprob: float = -3.0,
    ) -> None:
        super().__init__(name=name, daemon=True)
        self._queue = Clients.connected_as(config, "worker")
        self._generation_s = generation_s
        self._vocabulary, self._longest, self._logprob = vocabulary, longest, logprob
        self._closed = threading.Event()

    def run(self) -> None:
        version = Version(0, 0)
        while not self._closed.is_set():
            try:
                lease = self._queue.lease(self.name, version, PER_LEASE)
                version = lease.published.version if lease.published and not lease.keeps else version
                self._queue.heartbeat(self.name, Heartbeat("made up", version, "generating"))
                if lease.tasks:
                    time.sleep(self._generation_s)
                    self._queue.complete(
                        self.name, [self._group(task, task.version or version) for task in lease.tasks]
                    )
                else:
                    self._queue.wait_for_work(self.name, 0.1)
            except EchoQueueError:
                if not self._closed.is_set():
                    raise

    def close(self) -> None:
        self._closed.set()
        self.join()

    def _group(self, task: Task, version: Version) -> Group:
        draw = np.random.default_rng(task.index)
        samples = tuple(
            Sample(
                tokens := draw.integers(0, self._vocabulary, draw.integers(1, self._longest + 1)).astype(np.int32),
                np.full(len(tokens), self._logprob, np.float32),
                (Span(0, version.number),),
                float(reward),
                "stop",
            )
            for reward in range(2)
        )
        prompt = draw.integers(0, VOCABULARY, 5).astype(np.int32)
        return Group(
            task.id, task.set, task.epoch, task.index, task.attempt, self.name, version.lineage, prompt, samples
        )  # fmt: skip


def make_base(folder: Path) -> None:
    tiny_model().save_pretrained(folder)
    tokenizer().save_pretrained(folder)


def tokenizer() -> PreTrainedTokenizerFast:
    """Returns the tokenizer of the tiny models, which knows the words w0, w1 and so on."""
    words = {f"w{number}": number for number in range(VOCABULARY)}
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="w0")))
