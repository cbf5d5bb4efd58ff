"""Prints documents for scripts."""

import sys
from typing import Any

import orjson

from echo_queue.cli.json_form import plain


def print_json(document: Any) -> None:
    """Prints one document on stdout, in its JSON form."""
    options = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE
    sys.stdout.buffer.write(orjson.dumps(plain(document), option=options))
