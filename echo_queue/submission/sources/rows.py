"""The rules for a prompt row, the same for every source.

A row has a `prompt`: text, or chat messages of text (`[{"role": …, "content": …}]`). Every other column reaches the
environment unchanged, so a value that JSON cannot hold, or that a parser would change, is refused. `normalise` alone
decides: the submitter's scan and the Celery worker both call it, so a row that passed one passes the other.
"""

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

import orjson
from blake3 import blake3

from echo_queue.errors import Problem, PromptError
from echo_queue.queue.counts import agreeing
from echo_queue.records import Message, PromptRow
from echo_queue.submission.sources.json_lines import BadLine, read_object, why_no_json

SOUGHT_ROWS = 100
"""So many bad rows are looked for; then nobody needs to know of more."""
REPORTED = 5
"""The largest number of problems in one error, and of rows named in one problem; more would hide the first."""
PARTICULAR = re.compile(r"'.*'|\b[0-9][0-9.,]*")
"""What differs between two rows with which the same is wrong: numbers, and what stands in quotation marks."""

MAX_ROW_BYTES = 16 * 1024 * 1024
"""A longer line is not a prompt but a file without newlines."""

_SERIALISE = orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY


MOST_LEVELS = 200
"""Lists and objects within each other in one column; the messages that carry rows hold some more."""

OBJECT_FIX = 'write one object per row: {"prompt": "…"}'
LIST_FIX = f"{OBJECT_FIX}; for a list of them: jq -c '.[]' FILE > prompts.jsonl"
NAME_PROMPT = "name that column `prompt`, or say in [prompts.map] what makes it"
WRITE_TEXT = "write it as text"


class BadRow(Exception):
    """A row that cannot be a prompt: what is wrong with it, and how to fix it."""

    def __init__(self, what: str, fix: str) -> None:
        super().__init__(what)
        self.what = what
        self.fix = fix


def read(line: bytes) -> object:
    """Returns the value of a JSON line. Raises `BadRow`."""
    try:
        return read_object(line)
    except BadLine as bad:
        raise BadRow(*bad.args) from None


def normalise(values: object) -> PromptRow:
    """Splits a row into its prompt and the other columns, and keeps `values` for them. Raises `BadRow`."""
    if not isinstance(values, dict):
        raise BadRow(f"is {kind_of(values)}, not an object", LIST_FIX if isinstance(values, list) else OBJECT_FIX)
    if "prompt" not in values:
        raise BadRow(f"has no `prompt` (columns: {', '.join(map(str, values)) or 'none'})", NAME_PROMPT)
    prompt = _prompt(values.pop("prompt"))
    for name, value in values.items():
        if type(value) is not str:
            _require_exact(f"`{name}`", value, MOST_LEVELS)
    return PromptRow(prompt, values)


def _require_exact(column: str, value: object, levels: int) -> None:
    """Raises `BadRow` unless JSON holds `value` as it is, in at most `levels` levels."""
    if value is None or isinstance(value, str | bool):
        return
    if isinstance(value, int):
        if not -(1 << 63) <= value < 1 << 64:
            raise BadRow(f"has an integer of more than 64 bits in {column}", WRITE_TEXT)
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise BadRow(f"has {value} in {column}, which JSON cannot hold", "write null, or text")
    elif isinstance(value, list | tuple | dict):
        if not levels:
            raise BadRow(f"has more than {MOST_LEVELS} lists and objects within each other in {column}", WRITE_TEXT)
        for part in value.values() if isinstance(value, dict) else value:
            _require_exact(column, part, levels - 1)
    elif not hasattr(value, "dtype"):  # numpy's numbers and arrays are stored as what they hold
        what = f"has a value that JSON cannot hold in {column}: {kind_of(value)}"
        raise BadRow(what, "convert that column to text or numbers, or leave it out")


def serialise(row: PromptRow) -> bytes:
    """Returns the row as a line of a shard, without a newline. Raises `BadRow` for a value that JSON cannot hold."""
    try:
        return orjson.dumps({"prompt": row.prompt, "columns": row.columns}, option=_SERIALISE)
    except (TypeError, orjson.JSONEncodeError) as error:
        raise BadRow(f"has a value that JSON cannot hold: {error}", "convert that column to text or numbers") from None


def digest_of(rows: Sequence[PromptRow]) -> str:
    """Returns the digest of rows as they are sent. Raises `TypeError` for a value that JSON cannot hold."""
    return blake3(orjson.dumps(rows, option=_SERIALISE)).hexdigest()


def deserialise(line: bytes) -> PromptRow:
    """Returns the row that `serialise` wrote as `line`. Raises `BadRow` for any other line."""
    try:
        values = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise BadRow(*why_no_json(line, error).args) from None
    if not isinstance(values, dict) or set(values) != {"prompt", "columns"} or not isinstance(values["columns"], dict):
        raise BadRow("is not a row of a shard", "submit the set again under another name")
    return PromptRow(_prompt(values["prompt"]), values["columns"])


def refuse(bad: Iterable[tuple[str, BadRow]]) -> None:
    """Raises `PromptError` that names the bad rows, if there are any. `bad`: pairs of (location, error)."""
    if problems := [Problem(where, row.what, row.fix) for where, row in bad]:
        raise PromptError(*by_kind(problems))


def by_kind(problems: Sequence[Problem]) -> Iterator[Problem]:
    """Yields one problem for each kind of those of single rows: it counts the rows, and names the first of them."""
    kinds: dict[tuple[str, str], list[Problem]] = {}
    for problem in problems:
        kinds.setdefault((PARTICULAR.sub("", problem.what), problem.fix), []).append(problem)
    more = " or more" if len(problems) >= SOUGHT_ROWS else ""
    for first, *others in islice(kinds.values(), REPORTED):
        if not others:
            yield first
            continue
        places = [other.where.rpartition("/")[2] for other in others[: REPORTED - 1]]
        named = ", ".join([*places, "…"] if len(others) > len(places) else places)
        what = f"{first.what} (the same in {len(others)}{more} other {agreeing(len(others), 'row', 'rows')}: {named})"
        yield Problem(first.where, what, first.fix)


def _prompt(value: object) -> str | list[Message]:
    if isinstance(value, str):
        if not value or value.isspace():
            raise BadRow("its prompt is empty", "remove the row, or write its prompt")
        return value
    if isinstance(value, list):
        if not value:
            raise BadRow("its prompt has no messages", "remove the row, or write its messages")
        return list(_messages(value))
    raise BadRow(f"its prompt is {kind_of(value)}", "a prompt is text, or a list of chat messages")


def _messages(messages: list[object]) -> Iterator[Message]:
    for position, message in enumerate(messages, start=1):
        if not isinstance(message, dict):
            raise BadRow(f"message {position} is {kind_of(message)}", 'write {"role": "user", "content": "…"}')
        for key in ("role", "content"):
            if not isinstance(message.get(key), str):
                raise BadRow(
                    f"message {position}: `{key}` is {kind_of(message.get(key))}, not text", "write it as text"
                )
        if not message["role"].strip():
            raise BadRow(f"message {position}: `role` is empty", 'write "system", "user" or "assistant"')
        if further := [key for key, value in message.items() if key not in ("role", "content") and value is not None]:
            raise BadRow(f"message {position} has unknown keys: {', '.join(further)}", "keep `role` and `content` only")
        yield {"role": message["role"], "content": message["content"]}
    if not any(message["content"].strip() for message in messages if isinstance(message, dict)):
        raise BadRow("all its messages are empty", "remove the row, or write its messages")


def kind_of(value: object) -> str:
    """Returns what a value is, for a person."""
    names = {type(None): "missing", bool: "true or false", int: "a number", float: "a number", str: "text"}
    names |= {list: "a list", dict: "an object"}
    return names.get(type(value), f"a {type(value).__name__}")
