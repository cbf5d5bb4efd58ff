"""A controller's memory as JSON, as Redis keeps it between two decisions.

A memory of another release, or one that somebody has written by hand, is refused rather than guessed at: what exists is
found again by listing it, and only launches that are under way and back-offs are lost with it.
"""

from dataclasses import asdict

import orjson
from pydantic import TypeAdapter, ValidationError

from echo_queue.fleet.state import Memory

MEMORY = TypeAdapter(Memory)


def encoded(memory: Memory) -> bytes:
    """Returns the memory as JSON with sorted keys."""
    return orjson.dumps(asdict(memory), default=sorted, option=orjson.OPT_SORT_KEYS)


def decoded(document: bytes) -> Memory | None:
    """Returns the memory; a new one for an empty document, None for one that is none."""
    if not document:
        return Memory()
    try:
        return MEMORY.validate_json(document)
    except ValidationError:
        return None
