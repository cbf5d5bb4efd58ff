"""The task that a base model is warmed up on: a reasoning-gym dataset, with prompts apart from the run's own."""

from dataclasses import dataclass
from typing import Any

from echo_queue.config import Config
from echo_queue.errors import ConfigError, Problem
from echo_queue.submission.generated import original
from echo_queue.submission.sources import GENERATED

WARMUP_SEED_OFFSET = 100_000_000
"""reasoning-gym generates item i from seed + i: sets that lie this far apart have no item in common."""


@dataclass(frozen=True)
class Example:
    """A prompt of the task, and its right answer."""

    prompt: str
    answer: str


@dataclass(frozen=True)
class Task:
    """A dataset with its settings but for `size`, and the run's own seed."""

    dataset: str
    settings: dict[str, Any]
    seed: int


def task_of(config: Config) -> Task:
    """The task that the run's prompts are of. Raises `ConfigError` unless they are a reasoning-gym set."""
    source = config.prompts.source
    if not source.startswith(GENERATED):
        what = f'"init" makes a model for a reasoning-gym task, and prompts.source is {source!r}'
        mend = f"name a model folder or a hub model in model.base, or set prompts.source to {GENERATED}DATASET"
        raise ConfigError(Problem("model.base", what, mend))
    settings = {key: value for key, value in config.prompts.options.items() if key not in ("seed", "size")}
    return Task(source.removeprefix(GENERATED), settings, int(config.prompts.options.get("seed", 0)))


def warmup_examples(task: Task, count: int) -> list[Example]:
    """The prompts that a base model of this task has seen, with their right answers.

    Raises `PromptError` for settings that reasoning-gym refuses.
    """
    options = task.settings | {"seed": task.seed + WARMUP_SEED_OFFSET, "size": count}
    columns: dict[str, Any] = {"dataset": task.dataset, "options": options}
    entries = (original(columns | {"index": index})[1] for index in range(count))
    return [Example(entry["question"], entry["answer"]) for entry in entries]
