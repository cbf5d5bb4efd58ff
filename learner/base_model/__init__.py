"""The model of version 0, made here, for a machine that can download none.

- A model of less than a million parameters with a tokenizer of its own, warmed up on the format of the run's
  reasoning-gym task, or on the moves of poker. A real run names a hub model or a folder in `model.base` instead.
- It is made once: a folder made from the same settings is kept. Killed at any moment, it leaves no half model.
"""

import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import orjson

from echo_queue import failpoints
from echo_queue.config import Config
from learner.base_model.task import Task, task_of, warmup_examples

RECIPE = 2
"""Counts the changes of this package that make another model of the same settings."""
DECIDING_PACKAGES = ("tokenizers", "torch", "transformers")
MADE_FROM = "made_from.json"


def make(config: Config, say: Callable[[str], None] = print) -> Path:
    """Makes the base model in `config.base_model` unless it is there; returns that folder.

    Raises `ConfigError` where there is no task to warm it up on, `PromptError` for a task's bad settings.
    """
    task, folder = task_of(config), Path(config.base_model)
    recipe = _recipe(config, task)
    if _is_made_from(folder, recipe):
        say(f"the base model is there: {folder}")
        return folder
    from learner.base_model.build import build  # torch takes seconds, and mostly there is nothing to build

    began, init = time.monotonic(), config.model.init
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".base-", dir=folder.parent, ignore_cleanup_errors=True) as scratch:
        made = Path(scratch) / "made"
        failpoints.step("build base", lambda: build(config, warmup_examples(task, init.warmup_prompts), made, say))
        failpoints.step("note recipe", lambda: (made / MADE_FROM).write_bytes(recipe))
        if folder.exists():
            failpoints.step("set base aside", lambda: folder.rename(Path(scratch) / "replaced"))
        failpoints.step("place base", lambda: made.rename(folder))
    say(f"the base model is made: {folder} ({time.monotonic() - began:.0f} s)")
    return folder


def _recipe(config: Config, task: Task) -> bytes:
    """Everything that decides what the model is, in a form that can be compared and read."""
    decides = {
        "recipe": RECIPE,
        "packages": {name: version(name) for name in (*DECIDING_PACKAGES, *task.packages)},
        "task": [task.source, task.settings, task.seed],
        "seed": config.run.seed,
        "room": [config.model.max_prompt_tokens, config.model.max_new_tokens],
        "init": config.model.init.model_dump(),
    }
    return orjson.dumps(decides, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS | orjson.OPT_APPEND_NEWLINE)


def _is_made_from(folder: Path, recipe: bytes) -> bool:
    """The folder gets its name when everything is in it, so one that has this recipe is whole."""
    made_from = folder / MADE_FROM
    return made_from.is_file() and made_from.read_bytes() == recipe
