"""Documents that commands print for scripts."""

import sys
from typing import Any

import orjson


def print_json(document: Any) -> None:
    """One document on stdout."""
    sys.stdout.buffer.write(orjson.dumps(document, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
