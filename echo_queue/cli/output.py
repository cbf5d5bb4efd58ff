"""Prints documents for scripts."""

import sys
from typing import Any

import orjson


def print_json(document: Any) -> None:
    """Prints one document on stdout."""
    sys.stdout.buffer.write(orjson.dumps(document, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
