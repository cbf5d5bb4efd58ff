"""Prints documents for scripts."""

import sys
from typing import Any

import orjson

from echo_queue.cli.json_form import plain

OPTIONS = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE


def print_json(document: Any) -> None:
    """Prints one document on stdout, in its JSON form."""
    sys.stdout.buffer.write(orjson.dumps(plain(document), option=OPTIONS))
