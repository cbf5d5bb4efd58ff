"""Tasks whose prompts run from trivial to hopeless: levels of one reasoning-gym dataset, mixed in equal shares.

A hopeless prompt's answer has more tokens than a sample may have. The base model is warmed up on all levels, as
`echo-queue init-model` does for one.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import reasoning_gym

from echo_queue.config import Config
from learner.base_model.build import build
from learner.base_model.task import WARMUP_SEED_OFFSET, Example

HELD_OUT_SEED_OFFSET = 200_000_000
LEVELS_APART = 10_000_000
"""Item i of a dataset is generated from seed + i: the levels have no item in common."""

Options = Mapping[str, Any]
SORTING: Options = {"min_value": 0, "max_value": 20, "max_decimals": 0}


@dataclass(frozen=True)
class Level:
    """Prompts of one difficulty: options of the dataset, and whether the target counts them."""

    name: str
    options: Options
    counts: bool = True


@dataclass(frozen=True)
class Item:
    """A prompt with what scores it."""

    level: Level
    question: str
    entry: dict[str, Any]
    dataset: Any

    def score(self, answer: str) -> float:
        return float(self.dataset.score_answer(answer.strip(), self.entry))


@dataclass(frozen=True)
class Task:
    """A reasoning-gym dataset at several levels."""

    dataset: str
    levels: tuple[Level, ...]
    max_new_tokens: int
    warmup_steps: int
    """Steps in which the base model is made: it is to find right answers now and then at the levels that count."""

    def items(self, count: int, seed: int) -> list[Item]:
        """Returns `count` prompts, the levels in turns."""
        sets = [self._level(number, count, seed) for number in range(len(self.levels))]
        return [sets[at % len(sets)][at // len(sets)] for at in range(count)]

    def _level(self, number: int, count: int, seed: int) -> list[Item]:
        level, size = self.levels[number], -(-count // len(self.levels))
        made = reasoning_gym.create_dataset(self.dataset, seed=seed + number * LEVELS_APART, size=size, **level.options)
        entries: list[dict[str, Any]] = [made[index] for index in range(size)]
        return [Item(level, entry["question"], entry, made) for entry in entries]


def _sorting(name: str, numbers: int, counts: bool = True, **others: Any) -> Level:
    return Level(name, {**SORTING, "min_numbers": numbers, "max_numbers": numbers, **others}, counts)


def _spelling(name: str, letters: int, most: int, counts: bool = True) -> Level:
    return Level(name, {"min_word_len": letters, "max_word_len": most}, counts)


TASKS = {
    "sorting": Task(
        "number_sorting",
        (
            _sorting("trivial", 4, counts=False, min_value=3, max_value=3.4),
            *(_sorting(f"{numbers} numbers", numbers) for numbers in (3, 4, 5)),
            *(_sorting(f"hopeless ({numbers} numbers)", numbers, counts=False) for numbers in (9, 10)),
        ),
        max_new_tokens=12,
        warmup_steps=400,
    ),
    "spelling": Task(
        "spell_backward",
        (
            *(_spelling(f"{letters} letters", letters, letters) for letters in (3, 4, 5)),
            _spelling("hopeless (10 to 12 letters)", 10, 12, counts=False),
        ),
        max_new_tokens=6,
        warmup_steps=1600,
    ),
}


def config_of(task: Task, work: Path) -> Config:
    """Returns the quick start's model with the limits of this task."""
    return Config.model_validate(
        {
            "run": {"name": "selection", "dir": work},
            "model": {
                "max_prompt_tokens": 96,
                "max_new_tokens": task.max_new_tokens,
                "init": {"warmup_steps": task.warmup_steps},
            },
        }
    )


def base_model(name: str, work: Path) -> Path:
    """Returns the folder of the task's base model, and makes it if need be."""
    task = TASKS[name]
    folder = work / f"base-{name}-{task.warmup_steps}"
    if not folder.is_dir():
        config = config_of(task, work)
        items = task.items(config.model.init.warmup_prompts, WARMUP_SEED_OFFSET)
        build(config, [[Example(item.question, item.entry["answer"]) for item in items]], folder, print)
    return folder
