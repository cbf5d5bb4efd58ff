"""`python -m learner.base_model CONFIG`: the model of version 0, made here, for a machine that can download none.

- A small Qwen3-architecture model with a tokenizer of its own, warmed up on the format of a reasoning-gym task,
  in a normal Hugging Face folder. A real run names a hub model or a folder in `model.base` instead.
- The same settings make the same model on the same machine. It is made once: a folder made from the same settings
  is kept. Killed at any moment, it leaves no half model.
- Its prompts come from a seed far from the run's; which ones they are, `warmup_examples` tells.
"""

import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import orjson
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
from transformers.utils.logging import disable_progress_bar

from echo_queue.config import Config, ModelInit, load
from echo_queue.errors import ConfigError, EchoQueueError, Problem
from echo_queue.submission.generated import original
from echo_queue.submission.sources import GENERATED
from learner.base_tokenizer import train_tokenizer
from learner.base_warmup import Example, warm_up

RECIPE = 1
"""Counts the changes of this code that make another model of the same settings."""
WARMUP_SEED_OFFSET = 100_000_000
"""reasoning-gym generates item i from seed + i, so sets that lie this far apart share no item by construction."""
TOKENIZER_PROMPTS = 2_000
DECIDING_PACKAGES = ("reasoning_gym", "tokenizers", "torch", "transformers")
MADE_FROM = "made_from.json"

Say = Callable[[str], None]


@dataclass(frozen=True)
class Task:
    """A reasoning-gym dataset with its settings, without `seed` and `size`, which are the run's own."""

    dataset: str
    settings: dict[str, Any]
    seed: int

    def entries(self, seed: int, size: int) -> list[dict[str, Any]]:
        """The first `size` entries of the set that `seed` generates. Raises `PromptError` for bad settings."""
        options = self.settings | {"seed": seed, "size": size}
        columns: dict[str, Any] = {"dataset": self.dataset, "options": options}
        return [original(columns | {"index": index})[1] for index in range(size)]


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
    """The prompts that a base model of this task has seen, with their right answers."""
    entries = task.entries(task.seed + WARMUP_SEED_OFFSET, count)
    return [Example(entry["question"], entry["answer"]) for entry in entries]


def make(config: Config, say: Say = print) -> Path:
    """Makes the base model in `config.base_model` unless it is there; returns that folder.

    Raises `ConfigError` where there is no task to warm it up on.
    """
    task, folder = task_of(config), Path(config.base_model)
    recipe = _recipe(config, task)
    if _is_made_from(folder, recipe):
        say(f"the base model is there: {folder}")
        return folder
    began = time.monotonic()
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".base-", dir=folder.parent, ignore_cleanup_errors=True) as scratch:
        made = Path(scratch) / "base"
        _make(config, task, made, say)
        (made / MADE_FROM).write_bytes(recipe)
        if folder.exists():
            folder.rename(Path(scratch) / "replaced")
        made.rename(folder)
    say(f"the base model is made: {folder} ({time.monotonic() - began:.0f} s)")
    return folder


def _make(config: Config, task: Task, folder: Path, say: Say) -> None:
    settings, seed = config.model.init, config.run.seed
    room = config.model.max_prompt_tokens + config.model.max_new_tokens
    examples = warmup_examples(task, settings.warmup_prompts)
    shown = examples[:TOKENIZER_PROMPTS]
    tokenizer = train_tokenizer([e.prompt for e in shown], [e.answer for e in shown], settings.vocabulary, room)
    torch.manual_seed(seed)
    model = _blank(settings, tokenizer, room)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    tokens = len(tokenizer(shown[0].prompt)["input_ids"])
    say(f"{parameters:,} parameters, {len(tokenizer):,} tokens; the first prompt has {tokens} of them")
    warm_up(model, tokenizer, examples, settings, seed=seed, say=say)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _blank(settings: ModelInit, tokenizer: PreTrainedTokenizerFast, room: int) -> PreTrainedModel:
    model: PreTrainedModel = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=len(tokenizer),
            hidden_size=settings.hidden,
            num_hidden_layers=settings.layers,
            num_attention_heads=settings.heads,
            num_key_value_heads=settings.kv_heads,
            head_dim=settings.head_dim,
            intermediate_size=settings.intermediate,
            max_position_embeddings=room,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )
    return model


def _recipe(config: Config, task: Task) -> bytes:
    """Everything that decides what the model is, in a form that can be compared and read."""
    decides = {
        "recipe": RECIPE,
        "packages": {name: version(name) for name in DECIDING_PACKAGES},
        "task": [task.dataset, task.settings, task.seed],
        "seed": config.run.seed,
        "room": [config.model.max_prompt_tokens, config.model.max_new_tokens],
        "init": config.model.init.model_dump(),
    }
    return orjson.dumps(decides, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS | orjson.OPT_APPEND_NEWLINE)


def _is_made_from(folder: Path, recipe: bytes) -> bool:
    """The recipe is written last, before the folder gets its name: a folder that has it is whole."""
    made_from = folder / MADE_FROM
    return made_from.is_file() and made_from.read_bytes() == recipe


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        print("usage: python -m learner.base_model CONFIG", file=sys.stderr)
        return 2
    disable_progress_bar()
    try:
        make(load(Path(arguments[0])), say=lambda line: print(line, flush=True))
    except EchoQueueError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
