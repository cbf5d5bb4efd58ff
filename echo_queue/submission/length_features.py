"""What is known of how long a prompt's answers will be before there is one: its bucket, a byte.

- The queue learns each bucket's mean from the groups that are completed; here nothing is guessed but who is alike.
- Alike are prompts of the same value in the column that the set names as `length_feature`; where it names none, prompts
  of about the same length.
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
"""Those there are, from 1 on; 0 means that nothing is known."""
SHORT = 32
"""Characters; shorter prompts are all alike."""
STEPS = 6
"""Buckets to a factor of two in length, up to 41,000 characters."""
LONGEST = SHORT * 2 ** ((BUCKETS - 1) / STEPS)
BY_LENGTH = bytes(1 + math.floor(STEPS * math.log2(max(SHORT, size) / SHORT)) for size in range(math.ceil(LONGEST)))
"""The bucket of each length: a set may have millions of prompts."""
SORTED = orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY


def buckets(rows: Sequence[PromptRow], column: str) -> bytes:
    """A byte for each row. `column`: of the set's `length_feature`, which each row has; empty: the prompts' lengths."""
    return bytes(_of_value(row.columns[column]) if column else _of_prompt(row) for row in rows)


def refuse_featureless(column: str, source: PromptSource, chunk: Chunk, rows: Sequence[PromptRow]) -> None:
    """Raises `PromptError` naming the first row of a chunk without that column."""
    if not column:
        return
    without = next((position for position, row in enumerate(rows) if column not in row.columns), None)
    if without is not None:
        what = f"has no column `{column}`, which prompts.length_feature names"
        fix = "name another one, or none; a row of which it is not known may have null there"
        refuse([(source.place(chunk.first + without), BadRow(what, fix))])


def _of_value(value: object) -> int:
    if value is None:
        return 0
    return 1 + int.from_bytes(blake3(orjson.dumps(value, option=SORTED)).digest(4), "little") % BUCKETS


def _of_prompt(row: PromptRow) -> int:
    prompt = row.prompt
    size = len(prompt) if isinstance(prompt, str) else sum(len(message["content"]) for message in prompt)
    return BY_LENGTH[size] if size < len(BY_LENGTH) else BUCKETS
