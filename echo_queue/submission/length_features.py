"""Sorts prompts into buckets, one byte each, whose answers are likely to be of similar length.

- The queue learns each bucket's mean length from completed groups; this module only says which prompts are alike.
- Prompts are alike if they have the same value in the set's `length_feature` column; in a set without one, if they have
  about the same length.
"""

import math
from collections.abc import Sequence

import orjson
from blake3 import blake3

from echo_queue.queue.types import Chunk
from echo_queue.records import PromptRow
from echo_queue.submission.sources.rows import BadRow, refuse
from echo_queue.submission.sources.source import PromptSource

BUCKETS = 63
"""The number of buckets, numbered from 1; 0 means that nothing is known."""
SHORT = 32
"""Length in characters below which all prompts are alike."""
STEPS = 6
"""Buckets per factor of two in length, up to 41,000 characters."""
LONGEST = SHORT * 2 ** ((BUCKETS - 1) / STEPS)
BY_LENGTH = bytes(1 + math.floor(STEPS * math.log2(max(SHORT, size) / SHORT)) for size in range(math.ceil(LONGEST)))
"""The bucket of each length, as a table, since a set may have millions of prompts."""
SORTED = orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY


def buckets(rows: Sequence[PromptRow], column: str) -> bytes:
    """Returns each row's bucket, by its value in `column`, which each row has; by its prompt's length if empty."""
    return bytes(_value_bucket(row.columns[column]) if column else _length_bucket(row) for row in rows)


def refuse_featureless(column: str, source: PromptSource, chunk: Chunk, rows: Sequence[PromptRow]) -> None:
    """Raises `PromptError` naming the first row of a chunk without that column."""
    if not column:
        return
    without = next((position for position, row in enumerate(rows) if column not in row.columns), None)
    if without is not None:
        what = f"has no column `{column}`, which prompts.length_feature names"
        fix = "name another column, or none; a row without a known value may have null there"
        refuse([(source.location(chunk, without), BadRow(what, fix))])


def _value_bucket(value: object) -> int:
    if value is None:
        return 0
    return 1 + int.from_bytes(blake3(orjson.dumps(value, option=SORTED)).digest(4), "little") % BUCKETS


def _length_bucket(row: PromptRow) -> int:
    prompt = row.prompt
    size = len(prompt) if isinstance(prompt, str) else sum(len(message["content"]) for message in prompt)
    return BY_LENGTH[size] if size < len(BY_LENGTH) else BUCKETS
