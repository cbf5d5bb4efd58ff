"""The task that a base model is warmed up on: a reasoning-gym dataset or the user's set, without the run's prompts."""

from dataclasses import dataclass
from typing import Any

import orjson
from blake3 import blake3

from echo_queue.config import Config, Prompts
from echo_queue.errors import ConfigError, Problem, PromptError
from echo_queue.submission.sources.own import ask
from echo_queue.submission.sources.reasoning_gym import original
from echo_queue.submission.sources.source import GENERATED, OWN

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


def task_of(config: Config) -> WarmupTask:
    """Returns the task of the run's prompts. Raises `ConfigError` unless code makes them, and `PromptError`."""
    prompts = config.prompts
    if OWN.fullmatch(prompts.source):
        examples = _own_examples(prompts, config.model.init.warmup_prompts)
        return WarmupTask(prompts.source, {"examples": blake3(orjson.dumps(examples)).hexdigest()}, 0, (), examples)
    if not prompts.source.startswith(GENERATED):
        what = f'"init" makes a model for a generated set, but prompts.source is {prompts.source!r}'
        fix = f"name a model folder or a hub model in model.base, or set prompts.source to {GENERATED}DATASET"
        raise ConfigError(Problem("model.base", what, fix))
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
