"""The command `echo-queue init`: it looks at prompts, guesses what they are, asks for the rest, and writes a file.

Nothing is overwritten. What it writes has been loaded once, and the longest answer in it is one that this machine and
the model allow.
"""

import re
import shlex
import sys
import tempfile
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import typer

from echo_queue.capacity.estimate.refusals import refusals
from echo_queue.cli.init.guess import guessed, prompt_columns, shared
from echo_queue.cli.init.sizes import sizes_of
from echo_queue.cli.init.text import MODULE, OWN, Choice, configuration, reward_module
from echo_queue.cli.run import placement
from echo_queue.config.loading import load
from echo_queue.config.prompt_map import PromptMap
from echo_queue.errors import ConfigError, Problem, PromptError
from echo_queue.records import PromptRow
from echo_queue.submission.sources.registry import CHOICES, absolute, first_rows, open_source
from echo_queue.submission.sources.source import is_generated, spell

LOOKED_ROWS = 200
"""Rows by which columns are judged."""
MOST_ROWS = 20_000
"""Rows by which lengths are judged, and whether some can be held out."""
SCANNED_ROWS = 1_000
MADE = "init"
SUGGESTED = "Qwen/Qwen3-0.6B"


class Given(NamedTuple):
    """Holds what the user has said. What is empty is to be guessed, or asked."""

    file: str = ""
    model: str = ""
    reward: str = ""
    prompt: str = ""
    answer: str = ""
    yes: bool = False


def init(given: Given, out: Path) -> None:
    """Writes `out`, and a module for the reward beside it if none is known. Raises `ConfigError` and `PromptError`."""
    if out.exists():
        raise ConfigError(Problem("--out", f"{out} is there already", "name another file, or remove it"))
    source = given.file or _ask(given, "Prompts", Problem("FILE", "no prompts are named", CHOICES))
    if is_generated(source):
        fix = "copy configs/quickstart.toml, and name it there with its options"
        raise ConfigError(Problem("FILE", f"{source} is made by code, and no file of prompts", fix))
    rows = [row for row in first_rows(source, LOOKED_ROWS) if isinstance(row, dict)]
    if not rows:
        raise PromptError(Problem(source, "has no rows of columns", 'write one object per row: {"question": "…"}'))
    choice = _chosen(given, source, rows, out)
    module = out.with_name(f"{MODULE}.py") if choice.reward == OWN and not given.reward else None
    if module and module.exists():
        what = f"no reward can be guessed, and {module} is there already"
        raise ConfigError(Problem("--reward", what, f"name its function: --reward {MODULE}:FUNCTION"))
    text = _fitting(choice)
    for one in choice.guess.said:
        typer.echo(one)
    typer.echo(f"reward: {choice.reward}")
    if module:
        _write(module, reward_module(choice.guess.answer))
        typer.echo(f"wrote {module}: write the function `{OWN.partition(':')[2]}` in it")
    _write(out, text)
    typer.echo(f"wrote {out}\n")
    folder = out.parent.resolve()
    cd = "" if folder == Path.cwd() else f"cd {shlex.quote(str(folder))} && "
    for command in ("config check", "run"):
        typer.echo(f"{cd}echo-queue {command} {shlex.quote(out.name)}")


def _chosen(given: Given, source: str, rows: Sequence[dict[str, object]], out: Path) -> Choice:
    columns = ", ".join(shared(rows)) or "none that all rows have"
    if given.prompt and given.prompt not in shared(rows):
        raise ConfigError(Problem("--prompt", f"not every row has a column {given.prompt}", f"name one of: {columns}"))
    if given.answer and given.answer not in shared(rows):
        raise ConfigError(Problem("--answer", f"not every row has a column {given.answer}", f"name one of: {columns}"))
    prompt = given.prompt
    if not prompt:
        fit = prompt_columns(rows)
        what = f"nothing tells which column of {source} is the prompt: {columns}"
        unknown = Problem("--prompt", what, "name a column of text, or of chat messages that end with the user's")
        prompt = fit[0] if len(fit) == 1 else _ask(given, f"Column of the prompt ({columns})", unknown)
        if prompt not in shared(rows):
            raise ConfigError(Problem("--prompt", f"not every row has a column {prompt}", f"name one of: {columns}"))
    guess = guessed(rows, prompt, given.answer, given.reward)
    if guess.is_math and not guess.answer:
        what = f"nothing tells which column has the answers that math compares with: {columns}"
        raise ConfigError(Problem("--answer", what, "name the column"))
    fix = f"name a model's folder, or a hub model such as {SUGGESTED}"
    model = given.model or _ask(given, "Model", Problem("--model", "no model is named", fix), SUGGESTED)
    if model == MADE:
        what = f"{MADE} makes a model for prompts that code makes, and not for these"
        raise ConfigError(Problem("--model", what, fix))
    reward = given.reward or ("math" if guess.is_math else _reward(given))
    if reward != "math" and not re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", reward):
        raise ConfigError(Problem("--reward", f"{reward!r} is no reward", 'write math, or "module:function"'))
    name = re.sub(r"[^a-z0-9]+", "-", out.stem.lower()).strip("-") or "mine"
    made = _prompts(source, PromptMap.model_validate(guess.map))
    sizes = sizes_of(model, made, more=len(made) >= MOST_ROWS)
    is_text = all(isinstance(row.prompt, str) for row in made)
    if not is_text and sizes.chat is False:
        what = f"{model} has no chat template, and the prompts are chat messages"
        raise ConfigError(Problem("--model", what, "name a model that has one, or another column of text by --prompt"))
    here = out.parent.resolve() == Path.cwd()
    if not here:
        source = absolute(source)
        model = str(Path(model).expanduser().absolute()) if Path(model).expanduser().is_dir() else model
    return Choice(name, source, model, reward, guess, sizes, is_text)


def _reward(given: Given) -> str:
    """Returns the reward where the rows do not tell: the answer of the user who is asked, or one to be written yet."""
    if given.yes or not sys.stdin.isatty():
        return OWN
    return str(typer.prompt("Reward, math or module:function (or a function to write)", default=OWN)).strip()


def _prompts(source: str, rules: PromptMap) -> list[PromptRow]:
    """Returns the first prompts. Raises `PromptError` that names the bad rows."""
    opened = open_source(spell(absolute(source), {}, rules))
    return list(islice((row for _, rows in opened.scan(SCANNED_ROWS) for row in rows), MOST_ROWS))


def _fitting(choice: Choice) -> str:
    """Returns the configuration with the longest answers that the machine and the model allow; the shortest if none."""
    texts = [configuration(choice, new_tokens) for new_tokens in choice.sizes.new_tokens]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "run.toml"
        for text in texts:
            file.write_text(text, encoding="utf-8")
            config = load(file, {})
            if not any(refusals(config)) and not any(placement.refusals(config)):
                return text
    return texts[-1]


def _ask(given: Given, question: str, unknown: Problem, suggested: str = "") -> str:
    """Asks for what nobody can know. Raises `ConfigError`, which names the flag, where nobody is there to be asked."""
    if given.yes and suggested:
        return suggested
    if given.yes or not sys.stdin.isatty():
        raise ConfigError(unknown)
    return str(typer.prompt(question, default=suggested or None)).strip()


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise ConfigError(Problem(str(path), f"cannot be written: {error.strerror}", "name another file")) from None
