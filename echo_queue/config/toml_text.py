"""Settings as the text of a TOML file, such as a run's configuration."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

KEY = re.compile(r"[A-Za-z0-9_-]+")
"""A key that needs no quotes."""


Table = Mapping[str, Any]


def written(settings: Mapping[str, Table | Sequence[Table]]) -> str:
    """Returns settings by section as TOML, a listed section as often as it is there.

    JSON's texts and numbers are TOML's; tables of a section stand inline.
    """
    lines: list[str] = []
    for section, values in settings.items():
        tables, head = ((values,), f"[{section}]") if isinstance(values, Mapping) else (values, f"[[{section}]]")
        for table in tables:
            lines += [head, *(f"{_key(key)} = {value_text(value)}" for key, value in table.items()), ""]
    return "\n".join(lines)


def value_text(value: Any) -> str:
    """Returns one value as TOML."""
    match value:
        case dict():
            return "{" + ", ".join(f"{_key(key)} = {value_text(part)}" for key, part in value.items()) + "}"
        case list():
            return "[" + ", ".join(map(value_text, value)) + "]"
    return orjson.dumps(value).decode().replace("\x7f", "\\u007f")


def _key(key: str) -> str:
    return key if KEY.fullmatch(key) else orjson.dumps(key).decode().replace("\x7f", "\\u007f")
