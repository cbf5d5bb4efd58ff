"""Makes the model of version 0 on a machine that cannot download one.

- The model has less than a million parameters and a tokenizer of its own, and is warmed up on the format of the run's
  reasoning-gym task, or on the examples of the user's own prompt set; in a mixture, on those of all components alike. A
  real run names a hub model or a folder in `model.base` instead.
- The model is made once: a folder made from the same settings is kept. A process killed at any moment leaves no half
  model.
"""

import tempfile
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path

import orjson

from echo_queue import failpoints
from echo_queue.config import Config
from echo_queue.models.model_imports import spare_scipy
from learner.base_model.task import WarmupTask, examples_of_each, tasks_of, warmup_examples

RECIPE = 2
"""Incremented by each change of this package that makes a different model from the same settings."""
MODEL_PACKAGES = ("tokenizers", "torch", "transformers")
MADE_FROM = "made_from.json"


def make(config: Config, say: Callable[[str], None] = print) -> Path:
    """Makes the base model in `config.base_model` unless it is there; returns that folder.

    Raises `ConfigError` if there is no task to warm it up on, `PromptError` for bad settings of a task.
    """
    tasks, folder = tasks_of(config), Path(config.base_model)
    recipe = _recipe(config, tasks)
    if _is_made_from(folder, recipe):
        say(f"the base model exists: {folder}")
        return folder
    # These import torch, which takes seconds; mostly there is nothing to build.
    spare_scipy()
    from learner.base_model.build import build

    began, count = time.monotonic(), examples_of_each(config, len(tasks))
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".base-", dir=folder.parent, ignore_cleanup_errors=True) as scratch:
        made = Path(scratch) / "made"
        examples = [warmup_examples(task, count) for task in tasks]
        failpoints.step("build base", lambda: build(config, examples, made, say))
        failpoints.step("note recipe", lambda: (made / MADE_FROM).write_bytes(recipe))
        if folder.exists():
            failpoints.step("set base aside", lambda: folder.rename(Path(scratch) / "replaced"))
        failpoints.step("rename base", lambda: made.rename(folder))
    say(f"the base model is made: {folder} ({time.monotonic() - began:.0f} s)")
    return folder


def _recipe(config: Config, tasks: Sequence[WarmupTask]) -> bytes:
    """Returns everything that determines the model, as JSON that can be compared and read."""
    named = [[task.source, task.settings, task.seed] for task in tasks]
    packages = [*MODEL_PACKAGES, *(name for task in tasks for name in task.packages)]
    recipe = {
        "recipe": RECIPE,
        "packages": {name: version(name) for name in packages},
        "task": named if config.mixture else named[0],
        "seed": config.run.seed,
        "room": [config.model.max_prompt_tokens, config.model.max_new_tokens],
        "init": config.model.init.model_dump(),
    }
    return orjson.dumps(recipe, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS | orjson.OPT_APPEND_NEWLINE)


def _is_made_from(folder: Path, recipe: bytes) -> bool:
    """Returns whether `folder` is whole and made from `recipe`: a folder gets its name once everything is in it."""
    made_from = folder / MADE_FROM
    return made_from.is_file() and made_from.read_bytes() == recipe
