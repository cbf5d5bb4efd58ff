"""Reads one line of JSON Lines without changing a value, and says what is wrong with a line that is none.

orjson, the fast parser, makes floats of integers above 64 bits, drops digits, and keeps the last of two equal keys. A
line where that may have happened is read a second time, exactly.
"""

import codecs
import json
import re
from collections.abc import Iterable, Iterator
from decimal import Decimal
from typing import Any, NoReturn

import orjson

MOST_DIGITS = 17
"""Significant digits of a number that any writer of 64-bit floats may write; more are its exact value, or too many."""
LONG_NUMBER = re.compile(rb"[0-9][0-9.]{17}|[0-9.][eE]-[0-9]{3}")
PER_LINE = "write one JSON object per line: jq -c . FILE > prompts.jsonl"
LIST = "name a list of rows .json, or write them as lines: jq -c '.[]' FILE > prompts.jsonl"
UTF8 = "save the file as UTF-8"
COMPRESSED = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"PK\x03\x04": "zip", b"PAR1": "Parquet"}
WORDS = {"NaN": "null", "Infinity": "null", "None": "null", "True": "true", "False": "false"}
WORD = re.compile(r"-?([A-Za-z_]+)")


class BadLine(Exception):
    """A line that is no JSON value, or whose value would change: what is wrong, and how to fix it."""


def read_object(line: bytes) -> object:
    """Returns the value of a line. Raises `BadLine`."""
    try:
        value = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise why_no_json(line, error) from None
    require_unchanged(line, value)
    return value


def require_unchanged(text: bytes, value: object) -> None:
    """Raises `BadLine` if `value`, which orjson has read from `text`, may not be all that stands there."""
    keys, floats = _survey(value)
    if keys != text.count(b'":') or b" :" in text or (floats and LONG_NUMBER.search(text)):
        _read_exactly(text)


def why_no_json(line: bytes, error: json.JSONDecodeError) -> BadLine:
    """Returns what is wrong with a line that the parser refuses."""
    if not line.strip():
        return BadLine("is empty", "remove the line")
    if line.startswith(codecs.BOM_UTF8):
        return BadLine("begins with a byte order mark", f"{UTF8} without it")
    if line.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) or line.startswith((b"{\0", b"\0{")):
        return BadLine("is UTF-16", UTF8)
    for magic, kind in COMPRESSED.items():
        if line.startswith(magic):
            return BadLine(f"is the beginning of a {kind} file", "unpack it, or name the file by its kind")
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as wrong:
        return BadLine(f"is not UTF-8 (byte {line[wrong.start]:#04x} at column {wrong.start + 1})", UTF8)
    return next(_why_no_json(text.rstrip(), error))


def _why_no_json(text: str, error: json.JSONDecodeError) -> Iterator[BadLine]:
    """Yields what may be wrong, the surest first."""
    # Not the decoder's own place: it counts lines within the row, which may end with a newline.
    position = min(error.pos, len(text))
    at, before, rest = f"at column {1 + position}", text[:position].rstrip(), text[position:]
    if text in ("[", "]", "{", "}"):
        yield BadLine("is a part of a value that goes over several lines", LIST if text in "[]" else PER_LINE)
    word = WORD.match(text, max(0, position - 1)) or WORD.match(rest)
    if word and word[1] in WORDS:
        yield BadLine(f"is not JSON: {word[0]} {at}", f"write {WORDS[word[1]]}")
    if "surrogate" in error.msg:
        yield BadLine(f"is not JSON: half of a character (a lone surrogate) {at}", "write the whole character")
    if "control character" in error.msg:
        yield BadLine(f"is not JSON: a control character in text {at}", r"write it as \n, \t or \u00XX")
    if "escape" in error.msg:
        yield BadLine(f"is not JSON: a backslash in text {at}", r"write it twice: \\")
    if before.endswith("}") and rest.lstrip(", ").startswith("{"):
        yield BadLine(f"holds several objects, the second {at}", "write one JSON object per line")
    if "trailing comma" in error.msg or rest.strip() == "," or (before.endswith(",") and rest[:1] in ("", "}", "]")):
        yield BadLine(f"is not JSON: a comma before the end {at}", "remove that comma")
    if rest.startswith("'"):
        yield BadLine(f"is not JSON: single quotes {at}", 'write it with json.dumps, whose quotes are "')
    yield BadLine(f"is not JSON: {error.msg} {at}", "write one JSON object per line")


def _survey(value: object) -> tuple[int, bool]:
    """Returns the number of keys in all objects of a value, and whether it holds a float."""
    keys, floats, rest = 0, type(value) is float, [value]
    while rest:
        one = rest.pop()
        parts: Iterable[object] = ()
        if type(one) is dict:
            keys += len(one)
            parts = one.values()
        elif type(one) is list:
            parts = one
        for part in parts:
            kind = type(part)
            if kind is float:
                floats = True
            elif kind is dict or kind is list:
                rest.append(part)
    return keys, floats


def _read_exactly(line: bytes) -> None:
    """Raises `BadLine` for a number that would lose something, and for two equal keys of one object."""
    try:
        json.loads(line, object_pairs_hook=_once, parse_int=_integer, parse_float=_float, parse_constant=_float)
    except RecursionError:  # too deep for `rows.normalise` as well
        return


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names = dict(pairs)
    if len(names) != len(pairs):
        twice = next(name for at, (name, _) in enumerate(pairs) if name in dict(pairs[:at]))
        raise BadLine(f"has the key {twice!r} twice in one object", "keep one of them")
    return names


def _integer(digits: str) -> int:
    if len(digits) > 20 or not -(1 << 63) <= (value := int(digits)) < 1 << 64:
        _refuse_number(digits, "is an integer of more than 64 bits")
    return value


def _float(digits: str) -> float:
    value, exact = float(digits), Decimal(digits)
    count = len(exact.as_tuple().digits)
    if (value == 0) != (exact == 0):
        _refuse_number(digits, "is too small for a 64-bit float")
    if count > MOST_DIGITS and Decimal(f"{Decimal(value):.{count - 1}e}") != exact:
        _refuse_number(digits, "has more digits than a 64-bit float holds")
    return value


def _refuse_number(digits: str, what: str) -> NoReturn:
    raise BadLine(f"has a number that would change: {digits[:40]} {what}", f'write it as text: "{digits[:40]}"')
