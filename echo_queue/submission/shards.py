"""Shards: the immutable objects that hold normalised prompts, one JSON line each.

- A shard's key names its set, its chunk and the digest of its bytes. So writing a shard twice writes the same bytes,
  and a reader can check the bytes that it got.
- A shard that is gone, damaged or too short is a `BadShard`, an error of the one task whose prompt it holds. A store
  that is away is another error, which concerns every task.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Protocol

from blake3 import blake3

from echo_queue.connections.storage.object_store import MissingObject
from echo_queue.errors import EchoQueueError, Problem
from echo_queue.records import PromptRow, PromptShard, Task
from echo_queue.submission.sources.rows import BadRow, deserialise, serialise

DIGEST_CHARACTERS = 32
"""The number of hex characters of the BLAKE3 digest in a key: 128 bits."""


RESTORE = "restore the object, or submit the set under another name; then `echo-queue revive`"


class BadShard(EchoQueueError):
    """A task's prompt cannot be read, whichever worker tries."""


class Reads(Protocol):
    """The part of `echo_queue.connections.storage.object_store.ObjectStore` that `ShardReader` uses."""

    def get(self, key: str) -> bytes: ...


class Writes(Protocol):
    """The part of `echo_queue.connections.storage.object_store.ObjectStore` that `write` uses."""

    def put(self, key: str, data: bytes) -> object: ...


def write(store: Writes, prompt_set: str, number: int, first: int, rows: Sequence[PromptRow]) -> PromptShard:
    """Stores rows first, first + 1, … of a set; a second call changes nothing. Raises `BadRow` as `serialise` does."""
    data = b"".join(serialise(row) + b"\n" for row in rows)
    digest = blake3(data).hexdigest()[:DIGEST_CHARACTERS]
    key = f"prompts/{prompt_set}/{number:08d}-{digest}.jsonl"
    store.put(key, data)
    return PromptShard(key, first, len(rows))


class ShardReader:
    """Reads the prompt of a task, and keeps the shards used last; a shard holds about `prompts.chunk` prompts."""

    def __init__(self, store: Reads, cache_shards: int = 8) -> None:
        self._store = store
        self._capacity = cache_shards
        self._shards: OrderedDict[str, list[bytes]] = OrderedDict()

    def row(self, task: Task) -> PromptRow:
        """Returns the prompt of `task`. Raises `BadShard`; `ServiceError` when the store fails."""
        lines, position = self._lines(task.shard), task.index - task.shard.first
        if not 0 <= position < len(lines):
            what = f"has {len(lines)} prompts from {task.shard.first} on, and none of index {task.index}"
            raise BadShard(Problem(task.shard.object, what, RESTORE))
        try:
            return deserialise(lines[position])
        except BadRow as row:
            raise BadShard(Problem(f"{task.shard.object}, line {position + 1}", row.what, row.fix)) from None

    def _lines(self, shard: PromptShard) -> list[bytes]:
        if shard.object in self._shards:
            self._shards.move_to_end(shard.object)
            return self._shards[shard.object]
        lines = self._fetch(shard)
        self._shards[shard.object] = lines
        if len(self._shards) > self._capacity:
            self._shards.popitem(last=False)
        return lines

    def _fetch(self, shard: PromptShard) -> list[bytes]:
        try:
            data = self._store.get(shard.object)
        except MissingObject:
            raise BadShard(Problem(shard.object, "is gone from the store", RESTORE)) from None
        digest = shard.object.removesuffix(".jsonl").rpartition("-")[2]
        if blake3(data).hexdigest()[:DIGEST_CHARACTERS] != digest:
            what = f"holds {len(data)} bytes that are not the ones written"
            raise BadShard(Problem(shard.object, what, RESTORE))
        return data.splitlines()
