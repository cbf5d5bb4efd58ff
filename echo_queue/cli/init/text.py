"""Writes what `echo-queue init` makes: the configuration, and the reward that is left to the user."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from echo_queue.cli.init.guess import Guess
from echo_queue.cli.init.sizes import Sizes
from echo_queue.config.toml_text import value_text

MODULE, FUNCTION = "rewards", "reward"
OWN = f"{MODULE}:{FUNCTION}"
HELD_OUT = "held-out"


class Choice(NamedTuple):
    """Holds all that a configuration is written from. `reward`: `math`, or `module:function`."""

    name: str
    source: str
    model: str
    reward: str
    guess: Guess
    sizes: Sizes
    is_text: bool
    """True if prompts are texts, and no chat messages."""


def configuration(choice: Choice, new_tokens: int) -> str:
    """Returns the text of the file. `new_tokens`: the longest answer."""
    return "\n".join(_lines(choice, new_tokens)) + "\n"


def reward_module(answer: str) -> str:
    """Returns the module of a reward that is not written yet. `answer`: the column to compare with; empty: none."""
    known = f"{answer}, " if answer.isidentifier() and answer not in ("prompts", "completions") else ""
    compared = f"    `{answer}` has each prompt's answer; other" if known else "    The"
    return f'''"""The reward of this run. `echo-queue config check` says whether it is written."""


def {FUNCTION}(prompts, completions, {known}**columns):
    """Returns one number per completion: the better, the higher. All lists have one length.

{compared} columns of the file are in `columns`, each a list.
    """
    raise NotImplementedError("write this reward")
'''


def _lines(choice: Choice, new_tokens: int) -> Iterator[str]:
    sizes = choice.sizes
    yield "# Made by `echo-queue init`. Every key, with its default: docs/configuration.md."
    yield from (f"# {one}" for one in choice.guess.said)
    yield from ("", "[run]", f"name = {value_text(choice.name)}", f"dir = {value_text(f'runs/{choice.name}')}")
    yield from ("", "[model]")
    yield f"base = {value_text(choice.model)}"
    yield f"dtype = {value_text(sizes.dtype)}"
    yield f"max_prompt_tokens = {sizes.prompt_tokens}   # longer prompts are refused, with their line"
    yield f"max_new_tokens = {new_tokens}   # longer answers are cut off: raise it if many are"
    yield from ("", "[prompts]", f"set = {value_text(choice.name)}", f"source = {value_text(choice.source)}")
    yield 'order = "shuffled"'
    held_out = sizes.held_out
    yield from _map("prompts.map", choice, {"split": [held_out, 1.0]} if held_out else {})
    yield from ("", "[environment]")
    if choice.reward == "math":
        yield 'kind = "math"   # 1 if math-verify finds the column `answer` in what the model wrote, else 0'
    else:
        yield 'kind = "function"'
        yield f"function = {value_text(choice.reward)}   # (prompts, completions, **columns) -> list of numbers"
    if held_out:
        yield from ("", "[[evaluation]]", f"name = {value_text(HELD_OUT)}", f"source = {value_text(choice.source)}")
        yield "temperature = 0.0   # the likeliest answer"
        yield "every_updates = 20"
        yield from _map("evaluation.map", choice, {"split": [0.0, held_out]})
    yield from ("", "[rollout]", f"engine = {value_text(sizes.engine)}", f"workers = {sizes.workers}")
    yield "group_size = 8   # answers to each prompt, which are compared with one another"
    yield from ("", "[learner]", f"batch_groups = {sizes.batch_groups}   # prompts in each update")
    yield "lr = 1e-6   # 1e-5 to 1e-4 for LoRA (model.lora.rank)"


def _map(section: str, choice: Choice, further: Mapping[str, Any]) -> Iterator[str]:
    chat = {"chat": True} if choice.sizes.chat and choice.is_text else {}
    rules = {**choice.guess.map, **chat, **further}
    if not rules:
        return
    yield from ("", f"[{section}]")
    for key, value in rules.items():
        note = "   # held out: no prompt of the one part is in the other" if key == "split" else ""
        yield f"{key} = {value_text(value)}{note}"
    if choice.sizes.chat is None and choice.is_text:
        yield "# chat = true   # if the model has a chat template"
