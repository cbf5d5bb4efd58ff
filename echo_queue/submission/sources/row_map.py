"""Makes a prompt row of a user's row as `[prompts.map]` says, or leaves it out. A row that lacks what is asked for, or
has it in another form, is a `BadRow`.
"""

import math
import re
from collections.abc import Iterable

import orjson
from blake3 import blake3

from echo_queue.config.prompt_map import COLUMN, UNMAPPED, PromptMap
from echo_queue.submission.sources.rows import BadRow, kind_of

SHOWN = 60
"""Characters of a value in an error."""


def mapped(rules: PromptMap, values: object) -> object | None:
    """Returns the row with its `prompt`, or None if it is left out. Raises `BadRow`."""
    if not isinstance(values, dict):
        return values
    row = {name: value for name, value in values.items() if name not in rules.columns.values()}
    row |= {new: _value(values, old, "columns") for new, old in rules.columns.items()}
    row |= {column: _extracted(expression, row, column) for column, expression in rules.extract.items()}
    if not all(low <= _number(row, column) <= high for column, (low, high) in rules.ranges.items()):
        return None
    if rules.template:
        row["prompt"] = COLUMN.sub(
            lambda match: f"{{{match[1]}}}" if match[1] else _text(row, match[2]), rules.template
        )
    prompt = row.get("prompt")
    length = len(prompt) if isinstance(prompt, str) else _length(prompt)
    if length < rules.min_characters or 0 < rules.max_characters < length:
        return None
    if rules.split != UNMAPPED.split and not rules.split[0] <= _number_of(prompt) < rules.split[1]:
        return None
    if rules.system or rules.chat:
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        before = [{"role": "system", "content": rules.system}] if rules.system else []
        row["prompt"] = [*before, *messages] if isinstance(messages, list) else messages
    return row


def _number_of(prompt: object) -> float:
    """Returns a prompt's own number, in 0 ≤ number < 1; equal prompts have the same, wherever they stand."""
    text = prompt if isinstance(prompt, str) else orjson.dumps(prompt, default=str)
    drawn = int.from_bytes(blake3(text.encode() if isinstance(text, str) else text).digest(length=6))
    return drawn / (1 << 48)


def _length(messages: object) -> int:
    """Returns the characters in chat messages; those in anything else, which `normalise` refuses, are not counted."""
    contents: Iterable[object] = messages if isinstance(messages, list) else ()
    return sum(len(str(one.get("content", ""))) for one in contents if isinstance(one, dict))


def _value(row: dict[str, object], column: str, key: str) -> object:
    if column not in row:
        what = (
            f"has no column `{column}`, which prompts.map.{key} names (columns: {', '.join(map(str, row)) or 'none'})"
        )
        raise BadRow(what, "name a column that every row has")
    return row[column]


def _text(row: dict[str, object], column: str, key: str = "template") -> str:
    value = _value(row, column, key)
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        what = f"its `{column}` is {kind_of(value)}, which prompts.map.{key} takes as text"
        raise BadRow(what, "write text or a number there, or leave the row out")
    return str(value)


def _extracted(expression: str, row: dict[str, object], column: str) -> str:
    text = _text(row, column, "extract")
    found = re.findall(expression, text)
    if not found:
        shown = text if len(text) <= SHOWN else f"…{text[-SHOWN:]}"
        what = f"its `{column}` has nothing that {expression!r} finds: {shown!r}"
        raise BadRow(what, "write another expression in prompts.map.extract, or leave the row out")
    return str(found[-1]).strip()


def _number(row: dict[str, object], column: str) -> float:
    value = _value(row, column, "ranges")
    try:
        number = math.nan if isinstance(value, bool) else float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        number = math.nan
    if math.isnan(number):
        what = f"its `{column}` is {kind_of(value)}, and prompts.map.ranges compares numbers"
        raise BadRow(what, "write a number there, or leave the row out")
    return number
