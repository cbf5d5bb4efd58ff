"""Reads a run's configuration: a TOML file, overlaid by `ECHO_QUEUE_SECTION__KEY` variables.

An unknown key, a wrong type and an impossible combination are errors. All of them are reported together, each with its
key's path and the fix, before any process starts.
"""

import json
import os
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from echo_queue.config import Config
from echo_queue.config.checks import contradictions
from echo_queue.config.explanations import explain
from echo_queue.errors import ConfigError, Problem

ENV_PREFIX = "ECHO_QUEUE_"
FIXES = {
    "secret_in_url": "remove them: redis.username names the user of Redis, and docs/rights.md says which variable or "
    "file has a secret",
}

STAND_INS = {"name": "first", "dir": "first"}
"""What stands for the keys of [run] without a default, while everything else is checked."""
STAND_IN_NAMES = {"evaluation": "evaluation", "mixture": "component"}
"""What stands for the name of an evaluation or a component then, with its number behind it."""


def load(path: Path, environ: Mapping[str, str] = os.environ) -> Config:
    """Reads and checks `path`. Raises `ConfigError` with every problem found."""
    config, problems = examine(path, environ)
    if config is None or problems:
        raise ConfigError(*problems)
    return config


def examine(path: Path, environ: Mapping[str, str] = os.environ) -> tuple[Config | None, tuple[Problem, ...]]:
    """Returns the configuration and every problem with it.

    A value that is wrong by itself is reported and replaced by its default or stand-in, so that problems elsewhere
    (impossible combinations, unreachable services) can be reported at the same time. The configuration is None if the
    file cannot be read.
    """
    try:
        values = read_toml(path)
    except ConfigError as error:
        return None, error.problems
    problems = list(_overlay(values, environ))
    try:
        config = Config.model_validate(values)
    except ValidationError as error:
        wrong = list(explain(error, values, Config, "docs/configuration.md", FIXES))
        problems += wrong
        config_or_none = _without(values, wrong)
        if config_or_none is None:
            return None, tuple(problems)
        config = config_or_none
    named = {problem.where for problem in problems}
    problems += (problem for problem in contradictions(config) if problem.where not in named)
    return config, tuple(problems)


def read_toml(path: Path) -> dict[str, Any]:
    """Returns the file's tables. Raises `ConfigError` if it cannot be read or is no TOML."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(Problem(str(path), f"cannot be read: {error.strerror}", "name a TOML file")) from None
    except UnicodeDecodeError as error:
        what = f"is not UTF-8 (byte {error.object[error.start]:#04x} at place {error.start + 1})"
        raise ConfigError(Problem(str(path), what, "save the file as UTF-8")) from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(Problem(str(path), f"is not TOML: {error}", "fix that line")) from None


def _overlay(values: dict[str, Any], environ: Mapping[str, str]) -> Iterator[Problem]:
    """Writes `ECHO_QUEUE_A__B=value` over values["a"]["b"]; yields a problem for each variable that fits nowhere."""
    for variable, text in sorted(environ.items()):
        if not variable.startswith(ENV_PREFIX) or "__" not in variable:
            continue
        *sections, key = variable.removeprefix(ENV_PREFIX).lower().split("__")
        table: Any = values
        for section in sections:
            table = _inner(table, section)
        if isinstance(table, dict):
            table[key] = _literal(text)
        else:
            yield _placeless(variable, sections, values)


def _inner(table: Any, section: str) -> Any:
    """Returns the section of a table, which is made if it is not there, or the one of this number in a list."""
    if isinstance(table, dict):
        return table.setdefault(section, {})
    if isinstance(table, list) and section.isdecimal() and int(section) < len(table):
        return table[int(section)]
    return None


def _placeless(variable: str, sections: list[str], values: dict[str, Any]) -> Problem:
    """Returns the problem of a variable that fits nowhere."""
    first, *_, key = variable.removeprefix(ENV_PREFIX).split("__")
    if isinstance(listed := values.get(sections[0]), list):
        what = f"does not say which [[{sections[0]}]] of the file it changes; it has {len(listed)}"
        return Problem(variable, what, f"write {ENV_PREFIX}{first}__0__{key} for the first one")
    return Problem(variable, f"the file has a value, not a section, at {'.'.join(sections)}", "unset the variable")


def _literal(text: str) -> Any:
    """Reads a value as TOML has it or, of a table or list, as JSON has it; anything else is a text."""
    with suppress(tomllib.TOMLDecodeError):
        return tomllib.loads(f"value = {text}")["value"]
    if text[:1] in ("{", "["):
        with suppress(json.JSONDecodeError):
            return json.loads(text)
    return text


def _without(values: dict[str, Any], problems: list[Problem]) -> Config | None:
    """Replaces wrong values by their defaults or stand-ins; None where that is not enough."""
    for problem in problems:
        *sections, key = (part.rstrip("]") for part in problem.where.replace("[", ".").split("."))
        table: Any = values
        for section in sections:
            table = _inner(table, section)
        if isinstance(table, dict):
            table.pop(key, None)
        elif isinstance(table, list):
            values.pop(sections[0], None)  # what stands at this number is no section
    run = values.get("run")
    values["run"] = STAND_INS | (run if isinstance(run, dict) else {})
    for listed, name in STAND_IN_NAMES.items():
        for number, table in enumerate(values.get(listed, [])):
            table.setdefault("name", f"{name}-{number}")
    try:
        return Config.model_validate(values)
    except ValidationError:
        return None
