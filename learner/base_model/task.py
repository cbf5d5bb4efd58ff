"""The task that a base model is warmed up on, a reasoning-gym dataset or poker; its prompts are not the run's own."""

import random
from dataclasses import dataclass, field
from typing import Any

from echo_queue.config import Config
from echo_queue.errors import ConfigError, Problem
from echo_queue.submission.sources.poker import Hand
from echo_queue.submission.sources.poker.deals import PokerSource
from echo_queue.submission.sources.reasoning_gym import original
from echo_queue.submission.sources.source import GENERATED, POKER

WARMUP_SEED_OFFSET = 100_000_000
"""Item i is generated from seed + i: sets that lie this far apart have no item in common."""


@dataclass(frozen=True)
class Example:
    """A prompt of the task, and its right answer."""

    prompt: str
    answer: str
    further: tuple[tuple[str, str], ...] = ()
    """Of an example of several turns: what the environment says next, and the answer to that."""
    mixed: bool = True
    """Whether the warm-up may put a wrong answer in this one's place (`warmup.rearranged`)."""


@dataclass(frozen=True)
class Task:
    """A generated set with its settings but for `size`, and the run's own seed."""

    source: str
    settings: dict[str, Any]
    seed: int
    packages: tuple[str, ...] = field(default=("reasoning_gym",))
    """What decides its items."""

    @property
    def dataset(self) -> str:
        return self.source.partition(":")[2]


def task_of(config: Config) -> Task:
    """The task that the run's prompts are of. Raises `ConfigError` unless they are a generated set."""
    source = config.prompts.source
    if not source.startswith((GENERATED, POKER)):
        what = f'"init" makes a model for a reasoning-gym task or for poker, and prompts.source is {source!r}'
        fix = f"name a model folder or a hub model in model.base, or set prompts.source to {GENERATED}DATASET"
        raise ConfigError(Problem("model.base", what, fix))
    settings = {key: value for key, value in config.prompts.options.items() if key not in ("seed", "size")}
    package = "reasoning_gym" if source.startswith(GENERATED) else "open_spiel"
    return Task(source, settings, int(config.prompts.options.get("seed", 0)), (package,))


def warmup_examples(task: Task, count: int) -> list[Example]:
    """The prompts that a base model of this task has seen, with their right answers; of poker, hands played at random.

    Raises `PromptError` for settings that the set refuses.
    """
    options = task.settings | {"seed": task.seed + WARMUP_SEED_OFFSET, "size": count}
    if task.source.startswith(POKER):
        deals = PokerSource(task.dataset, options)
        return [_played(Hand(deals.deal(index)), random.Random(options["seed"] + index)) for index in range(count)]
    columns: dict[str, Any] = {"dataset": task.dataset, "options": options}
    entries = (original(columns | {"index": index})[1] for index in range(count))
    return [Example(entry["question"], entry["answer"]) for entry in entries]


def _played(hand: Hand, rng: random.Random) -> Example:
    """A hand whose every move is any legal one: there is no right answer, only the form of one."""
    said = [f" {rng.choice(hand.moves)}"]
    read: list[str] = []
    while isinstance(told := hand.move(said[-1]), str):
        read.append(told)
        said.append(f" {rng.choice(hand.moves)}")
    return Example(hand.prompt, said[0], tuple(zip(read, said[1:], strict=True)), mixed=False)
