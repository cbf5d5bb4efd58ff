"""The roles of a storm: the real programs, as functions for a process that has all their imports behind it already.

Real are the services, Celery, the submission, the rollout loop, the learner and their entry points. Made up is only
what would take time: the engine draws tokens instead of computing them, and a reward is the parity of their sum. A few
groups are spoiled on purpose: a scorer that raises now and then or always, a token that the model does not have. The
learner's tensors carry a stamp (`stamps`), and the engine tells by which it was served.
"""

import logging
import os
import random
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson

from echo_queue import doors, submission
from echo_queue.cli.output import print_problems
from echo_queue.config import Config, Prompts, load
from echo_queue.errors import EchoQueueError
from echo_queue.queue import Queue
from echo_queue.records import Published, Version
from echo_queue.services import serving
from echo_queue.services.connect import connect_store
from tests.faults import stamps
from tests.faults.history import Recorder
from workers.engines import Completion, Prompt, Sampling
from workers.environments import Answers
from workers.environments.scorer import ScoringError

if TYPE_CHECKING:
    from torch import Tensor

    from echo_queue.weights import Press

Publish = Callable[["Press", Version, "Mapping[str, Tensor]", str], Published]

VOCABULARY = 40
SHORT, LONG = 4, 64
"""Most tokens of a sample; a long one's group does not fit into its replay entry."""
ONE_IN_LONG, ONE_IN_SPOILED, ONE_IN_SLOW = 100, 2_000, 60
"""Groups that are long, groups or scores that are spoiled, calls that take long."""
SLOW_S = 1.0
ONE_IN_POISON = 997
"""Prompts that no environment can score."""
BACKLOG = 2_000
"""Prompts waiting, below which the submitter submits another set."""
REWIND_S = 8.0
CLOSING = "closing"
"""A file of this name tells the submitter that only the keel is to come."""
KEEL = "keel"
"""Declared at the beginning, submitted last: until then the run cannot be finished."""
ENDURING = serving.Patience(first_pause_s=0.02, longest_pause_s=0.2, most_ends=1_000_000)


def play(directory: Path, words: Sequence[str]) -> int:
    """The role `words[0]` of the storm in `directory`, named by the last word; its exit code."""
    name, path = words[-1], directory / "run.toml"
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s {name} %(name)s: %(message)s", datefmt="%H:%M:%S")
    os.environ["ECHO_QUEUE_CONFIG"] = str(path)
    doors.observer = Recorder(directory / "history", name)
    try:
        return PLAYED[words[0]](directory, load(path), name)
    except EchoQueueError as error:
        print_problems(error.problems)
        return 2


def services(directory: Path, config: Config, name: str) -> int:
    serving.serve(config, patience=ENDURING)
    return 0


def celery(directory: Path, config: Config, name: str) -> int:
    from echo_queue.submission.application import build

    quiet = ("--without-gossip", "--without-mingle", "--without-heartbeat")
    build(config).worker_main(["worker", "--concurrency", "1", "--loglevel", "INFO", *quiet])
    return 0


def learner(directory: Path, config: Config, name: str) -> int:
    from echo_queue.weights import Press
    from learner.__main__ import main

    Press.publish = stamped(Press.publish)  # type: ignore[method-assign]
    sys.argv = ["learner", str(directory / "run.toml")]
    return main()


def stamped(publish: Publish) -> Publish:
    return lambda press, version, tensors, dtype: publish(press, version, stamps.on(version, tensors), dtype)


def worker(directory: Path, config: Config, name: str) -> int:
    from tests.faults import served
    from workers.leaving import Leaving, on_signals
    from workers.worker import work

    leaving = Leaving()
    on_signals(leaving)
    served.watch(config.run.dir)
    work(config, name, Parity(), leaving, Drawing)  # type: ignore[arg-type]
    return 0


def submit(directory: Path, config: Config, name: str) -> int:
    """Set after set, as long as the backlog is short; one that was acknowledged is never submitted again."""
    done = directory / "submitted"
    done.mkdir(exist_ok=True)
    queue = Queue.connect(config, "monitor")
    while not (directory / CLOSING).exists():
        number = len(list(done.iterdir()))
        if number < 2 or queue.status().backlog < BACKLOG:
            prompts = write_set(directory, config.run.seed, number)
            wait = random.random() < 0.5  # or leave it to Celery and its reconciler
            submission.submit(config.model_copy(update={"prompts": prompts}), wait=wait)
            (done / prompts.set).touch()
        time.sleep(0.05)
    write_rows(keel_source(directory), 10, 0)
    submission.submit(config.model_copy(update={"prompts": keel(directory)}))
    return 0


def rewinder(directory: Path, config: Config, name: str) -> int:
    """An operator who goes back to some checkpoint as soon as no learner is heard; gives up after a while."""
    from learner.rewind import choices, rewind

    queue, store = Queue.connect(config, "learner"), connect_store(config, "learner")
    give_up = time.monotonic() + REWIND_S
    while True:
        whole = [choice.manifest.name for choice in choices(store) if choice.whole]
        try:
            print("back by", rewind(queue, store, random.choice(whole)), "groups", flush=True)
            return 0
        except EchoQueueError:
            if time.monotonic() > give_up:
                raise
        time.sleep(0.1)


PLAYED: dict[str, Callable[[Path, Config, str], int]] = {
    "services": services,
    "celery": celery,
    "submit": submit,
    "worker": worker,
    "learner": learner,
    "rewinder": rewinder,
}


# Prompts --------------------------------------------------------------------------------------------------------------


def write_set(directory: Path, seed: int, number: int) -> Prompts:
    """Set `number` of a storm, the same each time; its source is written unless it is there."""
    draw = random.Random(f"{seed} {number}")
    source = directory / "sources" / f"set-{number:04d}.jsonl"
    rows = draw.randint(300, 2_000)
    if not source.exists():
        write_rows(source, rows, number)
    return Prompts.model_validate(
        {
            "set": source.stem,
            "source": str(source),
            "epochs": draw.choice((1, 1, 1, 2)),
            "priority": draw.choice((0, 0, 1)),
            "order": draw.choice(("sequential", "shuffled")),
            "chunk": draw.choice((100, 500, 1_000)),
        }
    )


def keel(directory: Path) -> Prompts:
    return Prompts.model_validate({"set": KEEL, "source": str(keel_source(directory))})


def keel_source(directory: Path) -> Path:
    return directory / "sources" / f"{KEEL}.jsonl"


def is_poison(task: str) -> bool:
    """Whether no environment can score this prompt: as `write_rows` has it."""
    name, _, index = task.rsplit("/", 2)
    number = 0 if name == KEEL else int(name.rpartition("-")[2])
    return (int(index) + 1 + number) % ONE_IN_POISON == 0


def write_rows(source: Path, rows: int, number: int) -> None:
    """Whole, or not there."""
    source.parent.mkdir(parents=True, exist_ok=True)
    draft = source.with_suffix(".draft")
    lines = (
        {"prompt": f"w{number % VOCABULARY} w{row % VOCABULARY}", "poison": (row + number) % ONE_IN_POISON == 0}
        for row in range(1, rows + 1)
    )
    draft.write_bytes(b"".join(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE) for line in lines))
    draft.replace(source)


# What is made up ------------------------------------------------------------------------------------------------------


class Drawing:
    """An engine whose samples are drawn at random: everything of an engine but the model."""

    name = "drawing"

    def __init__(self, config: Config, folder: str, version: Version, stop_tokens: Sequence[int]) -> None:
        from safetensors.torch import load_file

        self.version = version
        self.sampled = 0
        self._tensors = stamps.on(version, load_file(f"{folder}/model.safetensors"))

    def load(self, version: Version, tensors: "Mapping[str, Tensor]") -> None:
        for name, tensor in self._tensors.items():
            tensor.copy_(tensors[name])
        self.version = version

    def weight(self, name: str) -> "Tensor":
        return self._tensors[name]

    def generate(
        self, prompts: Sequence[Prompt], group_size: int, sampling: Sampling, stop: threading.Event
    ) -> list[list[Completion]]:
        if random.randrange(ONE_IN_SLOW) == 0:
            stop.wait(random.uniform(0, SLOW_S))
        groups = [self._group(np.random.default_rng(prompt.seed), group_size, stop) for prompt in prompts]
        self.sampled += sum(len(one.tokens) for group in groups for one in group)
        return groups

    def _group(self, draw: np.random.Generator, size: int, stop: threading.Event) -> list[Completion]:
        longest = LONG if draw.integers(ONE_IN_LONG) == 0 else SHORT
        beyond = VOCABULARY if draw.integers(ONE_IN_SPOILED) == 0 else 0
        return [self._one(draw, place, longest, beyond, stop) for place in range(size)]

    def _one(
        self, draw: np.random.Generator, place: int, longest: int, beyond: int, stop: threading.Event
    ) -> Completion:
        length = longest if longest == LONG else int(draw.integers(1, longest + 1))
        tokens = (draw.integers(0, VOCABULARY, length) + beyond).astype(np.int32)
        logprobs = stamps.logprobs(place, length, stamps.of(self._tensors))
        return Completion(tokens, logprobs, "abort" if stop.is_set() else "stop")


class Parity:
    """A scorer in this process, with the interface of `Scorer`."""

    def wait_ready(self) -> None:
        pass

    def score(self, answers: Answers) -> list[float]:
        if answers.columns.get("poison") or random.randrange(ONE_IN_SPOILED) == 0:
            raise ScoringError("Traceback (made up):\nno reward for this one")
        return [float(sum(tokens) % 2) for tokens in answers.completion_ids]

    def close(self) -> int:
        return 0


def make_base(folder: Path) -> None:
    """A model of one layer and its tokenizer, small enough that an update takes milliseconds."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    from tests.learner.synthetic import tiny_model

    sizes: dict[str, Any] = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "head_dim": 8}
    tiny_model(num_key_value_heads=1, intermediate_size=16, **sizes).save_pretrained(folder)
    words = Tokenizer(models.WordLevel({f"w{number}": number for number in range(VOCABULARY)}, unk_token="w0"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=words).save_pretrained(folder)
