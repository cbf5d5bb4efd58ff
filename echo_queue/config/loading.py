"""Reads a run's configuration: a TOML file, overlaid by `ECHO_QUEUE_SECTION__KEY` variables.

An unknown key, a wrong type or an impossible combination is an error; all of them are reported together, each with its
key's path and the fix, before anything starts.
"""

import difflib
import os
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from echo_queue.config import Config
from echo_queue.config.checks import contradictions
from echo_queue.errors import ConfigError, Problem

ENV_PREFIX = "ECHO_QUEUE_"


def load(path: Path, environ: Mapping[str, str] = os.environ) -> Config:
    """Reads and checks `path`. Raises `ConfigError` with every problem found."""
    config, problems = examine(path, environ)
    if config is None or problems:
        raise ConfigError(*problems)
    return config


def examine(path: Path, environ: Mapping[str, str] = os.environ) -> tuple[Config | None, tuple[Problem, ...]]:
    """The configuration and everything wrong with it.

    A value that is wrong by itself is reported and its default taken in its place, so that what is wrong
    elsewhere (impossible combinations, unreachable services) can be reported at the same time. None: it
    cannot be read at all, or a key without a default is missing.
    """
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        return None, (Problem(str(path), f"cannot be read: {error.strerror}", "name a TOML file"),)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        return None, (Problem(str(path), f"is not TOML: {error}", "fix that line"),)
    problems = list(_overlay(values, environ))
    try:
        config = Config.model_validate(values)
    except ValidationError as error:
        wrong = list(_explain(error, values))
        problems += wrong
        config_or_none = _without(values, wrong)
        if config_or_none is None:
            return None, tuple(problems)
        config = config_or_none
    named = {problem.where for problem in problems}
    problems += (problem for problem in contradictions(config) if problem.where not in named)
    return config, tuple(problems)


def _overlay(values: dict[str, Any], environ: Mapping[str, str]) -> Iterator[Problem]:
    """Writes `ECHO_QUEUE_A__B=value` over values["a"]["b"]; yields what has no place."""
    for variable, text in sorted(environ.items()):
        if not variable.startswith(ENV_PREFIX) or "__" not in variable:
            continue
        *sections, key = variable.removeprefix(ENV_PREFIX).lower().split("__")
        place: Any = values
        for section in sections:
            place = place.setdefault(section, {}) if isinstance(place, dict) else None
        if not isinstance(place, dict):
            yield Problem(
                variable, f"the file has a value, not a section, at {'.'.join(sections)}", "unset the variable"
            )
            continue
        place[key] = _literal(text)


def _literal(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _explain(error: ValidationError, values: dict[str, Any]) -> Iterator[Problem]:
    """One problem per key: a union reports one entry per alternative, all at the same key."""
    explained: dict[str, Problem] = {}
    for entry in error.errors():
        location = _key_path(entry["loc"], values)
        where = ".".join(location)
        match entry["type"]:
            case "extra_forbidden":
                problem = Problem(where, "unknown key", _nearest(location))
            case "missing":
                problem = Problem(where, "is missing", "add it")
            case _ if where in explained:
                before = explained[where]
                problem = Problem(where, before.what + f"; or: {entry['msg'].lower()}", before.fix)
            case _:
                problem = Problem(where, f"{entry['input']!r} will not do: {entry['msg'].lower()}", "fix the value")
        explained[where] = problem
    yield from explained.values()


def _key_path(location: tuple[int | str, ...], values: dict[str, Any]) -> list[str]:
    """The part of pydantic's location that the reader wrote: without names of union alternatives."""
    path: list[str] = []
    place: Any = values
    for part in map(str, location):
        path.append(part)
        if not isinstance(place, dict) or not isinstance(place.get(part), dict):
            break
        place = place[part]
    return path


def _nearest(location: list[str]) -> str:
    model: type[BaseModel] | None = Config
    for part in location[:-1]:
        field = model.model_fields.get(part) if model else None
        model = field.annotation if field and isinstance(field.annotation, type) else None
    names = difflib.get_close_matches(location[-1], list(model.model_fields) if model else [], n=1, cutoff=0.5)
    return f"did you mean {names[0]}?" if names else "remove it; docs/configuration.md lists the keys"


def _without(values: dict[str, Any], problems: list[Problem]) -> Config | None:
    """The configuration with defaults in place of what is wrong; None where there is no default."""
    for problem in problems:
        *sections, key = problem.where.split(".")
        place: Any = values
        for section in sections:
            place = place.get(section, {}) if isinstance(place, dict) else {}
        if isinstance(place, dict):
            place.pop(key, None)
    try:
        return Config.model_validate(values)
    except ValidationError:
        return None
