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
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson

from echo_queue import doors, submission
from echo_queue.cli.output import print_problems
from echo_queue.config import Config, Prompts, load
from echo_queue.errors import EchoQueueError
from echo_queue.queue import Queue
from echo_queue.records import Draft, Finish, Logprobs, Published, Span, Tokens, Version
from echo_queue.services import serving
from echo_queue.services.connect import connect_store
from echo_queue.weights.manifest import TensorInfo
from echo_queue.weights.tensors import digest_of
from tests.faults import stamps
from tests.faults.history import Recorder
from workers.engines import Key, Request
from workers.environments import Answers, Reply, Turn
from workers.environments.scorer import ScoringError

if TYPE_CHECKING:
    from torch import Tensor

    from echo_queue.weights import Press

Publish = Callable[["Press", Version, "Mapping[str, Tensor]", str], Published]

VOCABULARY = 40
SHORT, LONG = 4, 128
"""Most tokens of a sample; a long one's group does not fit into its replay entry, and takes a step for each token."""
ONE_IN_LONG, ONE_IN_SPOILED, ONE_IN_SLOW = 200, 4_000, 600
"""Samples that are long, samples or scores that are spoiled, steps that take long."""
SLOW_S = 1.0
MOST_TURNS = 3
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
    work(config, name, Parity(config.environment.kind == "interactive"), leaving, Drawing)  # type: ignore[arg-type]
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
        {
            "prompt": f"w{number % VOCABULARY} w{row % VOCABULARY}",
            "poison": (row + number) % ONE_IN_POISON == 0,
            "turns": 1 + row % MOST_TURNS,
        }
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
        self._running: dict[Key, Growing] = {}

    @property
    def running(self) -> int:
        return len(self._running)

    def load(self, version: Version, tensors: "Mapping[str, Tensor]") -> None:
        for name, tensor in self._tensors.items():
            tensor.copy_(tensors[name])
        self.version = version

    def weight(self, name: str) -> "Tensor":
        return self._tensors[name]

    def holds(self, info: TensorInfo) -> bool:
        return digest_of(self.weight(info.name)) == info.digest

    def add(self, requests: Sequence[Request]) -> None:
        for request in requests:
            assert request.key not in self._running and len(request.draft.tokens) < request.limit
            self._running[request.key] = Growing.of(request)

    def step(self) -> dict[Key, Draft]:
        if random.randrange(ONE_IN_SLOW) == 0:
            time.sleep(random.uniform(0, SLOW_S))
        version = stamps.of(self._tensors)
        for sample in self._running.values():
            self.sampled += sample.grow(version)
        ended = {key: sample.draft("stop") for key, sample in self._running.items() if sample.ended}
        for key in ended:
            del self._running[key]
        return ended

    def drafts(self, tasks: Collection[str] | None = None) -> dict[Key, Draft]:
        return {key: one.draft(None) for key, one in self._running.items() if tasks is None or key.task in tasks}

    def abort(self, tasks: Collection[str]) -> None:
        for key in [key for key in self._running if key.task in tasks]:
            del self._running[key]

    def close(self) -> None:
        self._running.clear()


@dataclass
class Growing:
    """A sample under way: all its tokens are known, `place` of them are drawn. A long one grows by one in a step."""

    begun: Draft
    tokens: Tokens
    """From the end of `begun`."""
    logprobs: Logprobs
    spans: list[Span]
    place: int = 0

    @classmethod
    def of(cls, request: Request) -> "Growing":
        draw = np.random.default_rng(request.seed)
        length = LONG if draw.integers(ONE_IN_LONG) == 0 else int(draw.integers(1, SHORT + 1))
        beyond = VOCABULARY if draw.integers(ONE_IN_SPOILED) == 0 else 0
        length = min(length, request.limit - len(request.draft.tokens))
        tokens = (draw.integers(0, VOCABULARY, length) + beyond).astype(np.int32)
        return cls(request.draft, tokens, np.zeros(length, np.float32), list(request.draft.spans))

    @property
    def ended(self) -> bool:
        return self.place == len(self.tokens)

    def grow(self, version: Version) -> int:
        """Returns by how many tokens."""
        count = 1 if len(self.tokens) > SHORT else len(self.tokens)
        if not self.spans or self.spans[-1].version != version.number:
            self.spans.append(Span(len(self.begun.tokens) + self.place, version.number))
        self.logprobs[self.place : self.place + count] = stamps.logprobs(count, version)
        self.place += count
        return count

    def draft(self, finish: Finish | None) -> Draft:
        return Draft(
            tokens=np.concatenate([self.begun.tokens, self.tokens[: self.place]]),
            logprobs=np.concatenate([self.begun.logprobs, self.logprobs[: self.place]]),
            spans=tuple(self.spans),
            observed=self.begun.observed,
            finish=finish,
        )


class Parity:
    """A scorer in this process, with the interface of `Scorer`; an environment that answers, if `interactive`."""

    def __init__(self, interactive: bool) -> None:
        self.interactive = interactive

    def wait_ready(self) -> None:
        pass

    def score(self, answers: Answers) -> list[float]:
        self._may_fail(answers.columns)
        return [float(sum(tokens) % 2) for tokens in answers.completion_ids]

    def reply(self, turn: Turn) -> Reply:
        self._may_fail(turn.columns)
        if len(turn.completions) < turn.columns["turns"] and not turn.last:
            return Reply(observation=f"w{len(turn.completions)}", reward=None)
        return Reply(observation=None, reward=float(sum(map(len, turn.completions)) % 2))

    def _may_fail(self, columns: "Mapping[str, Any]") -> None:
        if columns.get("poison") or random.randrange(ONE_IN_SPOILED) == 0:
            raise ScoringError("Traceback (made up):\nno reward for this one")

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
