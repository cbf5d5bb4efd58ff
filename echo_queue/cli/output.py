"""Prints documents for scripts."""

import sys
from typing import Any

import orjson

from echo_queue.records import Version

OPTIONS = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE | orjson.OPT_NON_STR_KEYS


def print_json(document: Any) -> None:
    """Prints one document on stdout. A version of the weights is a text, such as "1.40"."""
    sys.stdout.buffer.write(orjson.dumps(document, default=_plain, option=OPTIONS))


def _plain(value: Any) -> str:
    if isinstance(value, Version):
        return str(value)
    raise TypeError
