"""Prints documents for scripts."""

import sys
from typing import Any

import orjson
from pydantic import TypeAdapter

OPTIONS = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE


def print_json(document: Any, kind: Any = None) -> None:
    """Prints one document on stdout, in the JSON form of its class, or of the type `kind`. What is not known is null,
    and never 0."""
    form = TypeAdapter(kind or type(document)).dump_python(document, mode="json", by_alias=True)
    sys.stdout.buffer.write(orjson.dumps(form, option=OPTIONS))
