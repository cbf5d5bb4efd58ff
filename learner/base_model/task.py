"""The tasks that a base model is warmed up on: reasoning-gym datasets or the user's sets, without the run's prompts.

There is one, or one for each component of a mixture.
"""

from dataclasses import dataclass
from typing import Any

import orjson
from blake3 import blake3

from echo_queue.config import Config, Prompts
from echo_queue.errors import ConfigError, Problem, PromptError
from echo_queue.submission.configured_sets import trained_sets, unmade
from echo_queue.submission.sources.own import ask
from echo_queue.submission.sources.reasoning_gym import original
from echo_queue.submission.sources.source import OWN

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
    packages: tuple[str, ...] = ("reasoning_gym",)
    """The packages whose versions determine the items."""
    examples: tuple[Example, ...] = ()
    """Those of a prompt set of the user's own, whose digest is the only setting."""

    @property
    def dataset(self) -> str:
        return self.source.partition(":")[2]


def tasks_of(config: Config) -> list[WarmupTask]:
    """Returns the task of the run's prompts, or those of the components that have a source.

    Each has an equal part of `model.init.warmup_prompts`. Raises `ConfigError` unless code makes all of them, and
    `PromptError`.
    """
    if problems := tuple(unmade(config)):
        raise ConfigError(*problems)
    sets = trained_sets(config)
    return [_task_of(prompts, examples_of_each(config, len(sets))) for prompts in sets]


def examples_of_each(config: Config, tasks: int) -> int:
    """Returns the number of examples of each of so many tasks."""
    return -(-config.model.init.warmup_prompts // tasks)


def _task_of(prompts: Prompts, count: int) -> WarmupTask:
    if OWN.fullmatch(prompts.source):
        examples = _own_examples(prompts, count)
        return WarmupTask(prompts.source, {"examples": blake3(orjson.dumps(examples)).hexdigest()}, 0, (), examples)
    settings = {key: value for key, value in prompts.options.items() if key not in ("seed", "size")}
    return WarmupTask(prompts.source, settings, int(prompts.options.get("seed", 0)))


def _own_examples(prompts: Prompts, count: int) -> tuple[Example, ...]:
    """Returns `count` examples of the user's set, each a list of pairs: what the model reads, and what it answers."""

    def examples(rows: Any) -> tuple[Example, ...]:
        if not hasattr(rows, "examples"):
            what = f'"init" makes a model from the method examples(count) of the prompts, which {prompts.source} lacks'
            raise PromptError(Problem("model.base", what, "add it, or name a model folder or a hub model"))
        dialogues = rows.examples(count)
        return tuple(Example(told, said, tuple(turns), may_be_wrong=False) for (told, said), *turns in dialogues)

    return ask(prompts.source, prompts.options, examples)


def warmup_examples(task: WarmupTask, count: int) -> list[Example]:
    """Returns the prompts that a base model of this task is warmed up on, with their right answers.

    Raises `PromptError` for settings that the set refuses.
    """
    if task.examples:
        return list(task.examples)
    options = task.settings | {"seed": task.seed + WARMUP_SEED_OFFSET, "size": count}
    columns: dict[str, Any] = {"dataset": task.dataset, "options": options}
    entries = (original(columns | {"index": index})[1] for index in range(count))
    return [Example(entry["question"], entry["answer"]) for entry in entries]
