"""Flags that set keys of the configuration for one command: `--staleness.s=2`, or `--staleness.s 2`.

They become the variables of the environment that overlay the file. So they win over variables that were set before,
each process that the command starts has them too, and a key that does not exist is told as any other.
"""

import re
from collections.abc import Collection, Mapping, Sequence

from echo_queue.config import Config
from echo_queue.config.loading import ENV_PREFIX
from echo_queue.errors import ConfigError, Problem

FLAG = re.compile(r"--(?P<key>\w+(?:\.\w+)+)(?:=(?P<value>.*))?", re.DOTALL)
"""A flag is told from a command's own options by the dot."""


OPTION = re.compile(r"--(?P<key>[\w-]+)(?:=.*)?", re.DOTALL)


def refuse_bare_keys(words: Sequence[str], options: Collection[str]) -> None:
    """Raises `ConfigError` for a flag that is no command's option, but a key of a section: `--lr=3`.

    `options`: those of all commands, as they are written.
    """
    for word in words:
        if word == "--":
            return
        found = OPTION.fullmatch(word)
        if found is None or f"--{found['key']}" in options:
            continue
        if keys := _keys(found["key"].replace("-", "_")):
            flags = " or ".join(f"--{key}=VALUE" for key in keys)
            raise ConfigError(
                Problem(word, "is no option; a key of the configuration is named whole", f"write {flags}")
            )


def _keys(name: str) -> list[str]:
    """Returns the keys of that name, each with its section."""
    sections = ((section, field.annotation) for section, field in Config.model_fields.items())
    return [f"{section}.{name}" for section, model in sections if name in getattr(model, "model_fields", {})]


def split(words: Sequence[str]) -> tuple[list[str], Mapping[str, str]]:
    """Returns the words that are no such flags, and the variables that the flags stand for.

    Raises `ConfigError` for a flag without a value.
    """
    others: list[str] = []
    variables: dict[str, str] = {}
    left = iter(words)
    for word in left:
        if (flag := FLAG.fullmatch(word)) is None:
            others.append(word)
            continue
        value = flag["value"] if flag["value"] is not None else next(left, None)
        if value is None:
            raise ConfigError(Problem(word, "has no value", f"write {word}=VALUE"))
        variables[ENV_PREFIX + flag["key"].upper().replace(".", "__")] = value
    return others, variables
