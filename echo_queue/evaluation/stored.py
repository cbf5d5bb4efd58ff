"""The answers of the rounds in the object store: one object for each set and version, put whole.

    evaluations/<set>/<lineage>-<number>.jsonl.zst: the line of the result, then one line for each prompt, by its index

A prompt's line has `index`, `answers` (each with `reward`, `length`, `finish` and, where they are kept, `tokens`),
`reason` and `prompt` (token ids).
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import orjson
import zstandard

from echo_queue.connections.storage.object_store import LargeObject, ObjectStore
from echo_queue.errors import Problem, ServiceError
from echo_queue.evaluation.results import Answer, EvaluationResult, PromptAnswers, result_of
from echo_queue.records import Tokens, Version

PREFIX = "evaluations/"
MOST_BYTES = 1 << 28
"""More than the answers of a round take, with the tokens that are kept of them."""
KEY = re.compile(rf"{PREFIX}([^/]+)/(\d+)-(\d+)\.jsonl\.zst")


class SpoiledAnswers(ServiceError):
    """An object is not what a learner stores of an evaluation."""


def key_of(name: str, version: Version) -> str:
    """Returns the key of the answers of a set by this version."""
    return f"{PREFIX}{name}/{version.lineage}-{version.number}.jsonl.zst"


def write(store: ObjectStore, result: EvaluationResult, answered: Sequence[PromptAnswers]) -> None:
    """Stores a result with its answers. Raises `ServiceError`."""
    rows = sorted(answered, key=lambda one: one.index)
    lines = [result.line, *(orjson.dumps(one, option=orjson.OPT_SERIALIZE_NUMPY) for one in rows)]
    data = zstandard.ZstdCompressor().compress(b"".join(line + b"\n" for line in lines))
    store.put(key_of(result.evaluation, result.version), data)


def read(store: ObjectStore, name: str, version: Version) -> tuple[EvaluationResult, list[PromptAnswers]]:
    """Returns what was stored. Raises `MissingObject` if nothing was, `SpoiledAnswers` for other bytes."""
    key = key_of(name, version)
    try:
        first, *rows = _decompressed(store.get(key, MOST_BYTES)).splitlines()
        result, answered = result_of(first), [_answers_of(orjson.loads(row)) for row in rows]
    except (LargeObject, zstandard.ZstdError, ValueError, TypeError, KeyError, OverflowError) as error:
        raise _spoiled(key, str(error)) from None
    if result is None:
        raise _spoiled(key, "its first line is no result of this release")
    return result, answered


def _decompressed(data: bytes) -> bytes:
    """Raises `ZstdError` for bytes that are not compressed, `ValueError` for those that expand too far."""
    found: bytes = zstandard.ZstdDecompressor().stream_reader(data).read(MOST_BYTES + 1)
    if len(found) > MOST_BYTES:
        raise ValueError(f"it expands to more than {MOST_BYTES} bytes")
    return found


def versions(store: ObjectStore) -> Iterator[tuple[str, Version]]:
    """Yields the set and the version of all stored answers. Raises `ServiceError`."""
    for found in store.list(PREFIX):
        if match := KEY.fullmatch(found.key):
            yield match[1], Version(int(match[2]), int(match[3]))


def _spoiled(key: str, why: str) -> SpoiledAnswers:
    what = f"is not what the learner stores of an evaluation: {why}"
    return SpoiledAnswers(Problem(key, what, "restore or remove that object"))


def _answers_of(row: Mapping[str, Any]) -> PromptAnswers:
    answers = tuple(Answer(one["reward"], one["length"], one["finish"], _ids(one["tokens"])) for one in row["answers"])
    return PromptAnswers(row["index"], answers, row["reason"], _ids(row["prompt"]))


def _ids(ids: Sequence[int] | None) -> Tokens | None:
    return None if ids is None else np.array(ids, np.int32)
