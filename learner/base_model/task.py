"""The task that a base model is warmed up on: a reasoning-gym dataset or poker, with other prompts than the run's."""

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
"""Item i is generated from seed + i, so sets whose seeds lie this far apart have no item in common."""


@dataclass(frozen=True)
class Example:
    """A prompt of the task with its right answer."""

    prompt: str
    answer: str
    turns: tuple[tuple[str, str], ...] = ()
    """The turns after the first: an observation of the environment, and the answer to it."""
    may_be_wrong: bool = True
    """The warm-up may put a wrong answer in place of this one (`warmup.rearranged`)."""


@dataclass(frozen=True)
class WarmupTask:
    """A generated prompt set: its settings without `size`, and the run's own seed."""

    source: str
    settings: dict[str, Any]
    seed: int
    packages: tuple[str, ...] = field(default=("reasoning_gym",))
    """The packages whose versions determine the items."""

    @property
    def dataset(self) -> str:
        return self.source.partition(":")[2]


def task_of(config: Config) -> WarmupTask:
    """Returns the task of the run's prompts. Raises `ConfigError` unless they are a generated set."""
    source = config.prompts.source
    if not source.startswith((GENERATED, POKER)):
        what = f'"init" makes a model for a reasoning-gym task or for poker, but prompts.source is {source!r}'
        fix = f"name a model folder or a hub model in model.base, or set prompts.source to {GENERATED}DATASET"
        raise ConfigError(Problem("model.base", what, fix))
    settings = {key: value for key, value in config.prompts.options.items() if key not in ("seed", "size")}
    package = "reasoning_gym" if source.startswith(GENERATED) else "open_spiel"
    return WarmupTask(source, settings, int(config.prompts.options.get("seed", 0)), (package,))


def warmup_examples(task: WarmupTask, count: int) -> list[Example]:
    """Returns the prompts that a base model of this task is warmed up on, with their right answers.

    For poker these are hands played at random. Raises `PromptError` for settings that the set refuses.
    """
    options = task.settings | {"seed": task.seed + WARMUP_SEED_OFFSET, "size": count}
    if task.source.startswith(POKER):
        deals = PokerSource(task.dataset, options)
        return [_played(Hand(deals.deal(index)), random.Random(options["seed"] + index)) for index in range(count)]
    columns: dict[str, Any] = {"dataset": task.dataset, "options": options}
    entries = (original(columns | {"index": index})[1] for index in range(count))
    return [Example(entry["question"], entry["answer"]) for entry in entries]


def _played(hand: Hand, rng: random.Random) -> Example:
    """Plays a hand by random legal moves: poker has no right answer, only the right form of one."""
    moves = [f" {rng.choice(hand.moves)}"]
    observations: list[str] = []
    while isinstance(observation := hand.move(moves[-1]), str):
        observations.append(observation)
        moves.append(f" {rng.choice(hand.moves)}")
    return Example(hand.prompt, moves[0], tuple(zip(observations, moves[1:], strict=True)), may_be_wrong=False)
