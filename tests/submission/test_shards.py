"""Shards: written once, read whole, checked."""

import pytest
from blake3 import blake3

from echo_queue.connections.storage.endpoint import StoreEndpoint
from echo_queue.connections.storage.object_store import ObjectStore
from echo_queue.records import PromptRow, PromptShard, Task
from echo_queue.submission.shards import DIGEST_CHARACTERS, BadShard, ShardReader, write


class Counted(ObjectStore):
    """Knows what was fetched."""

    fetched: list[str]

    def get(self, key: str) -> bytes:
        self.fetched.append(key)
        return super().get(key)


@pytest.fixture
def store(shared_store: StoreEndpoint, run_name: str) -> Counted:
    store = Counted(shared_store, run_name)
    store.fetched = []
    return store


def task(shard: PromptShard, index: int) -> Task:
    return Task(f"s/0/{index}", "s", 0, index, shard, 0, 0, 0, 0, 0, "tasks", "0-1")


def rows(first: int, count: int) -> list[PromptRow]:
    return [PromptRow(f"p{index}\u2028\x85", {"n": index}) for index in range(first, first + count)]


def test_a_reader_gives_each_task_its_prompt(store: Counted) -> None:
    shard = write(store, "s", 3, 30, rows(30, 10))
    reader = ShardReader(store)
    assert [reader.row(task(shard, index)) for index in range(30, 40)] == rows(30, 10)
    assert store.fetched == [shard.object]


def test_writing_a_chunk_twice_makes_one_object(store: Counted) -> None:
    assert write(store, "s", 0, 0, rows(0, 5)) == write(store, "s", 0, 0, rows(0, 5))
    assert len(list(store.list())) == 1


def test_the_shards_used_last_are_kept(store: Counted) -> None:
    shards = [write(store, "s", number, number * 2, rows(number * 2, 2)) for number in range(3)]
    reader = ShardReader(store, cache_shards=2)
    for number in (0, 1, 0, 2, 0, 1):
        reader.row(task(shards[number], number * 2))
    assert store.fetched == [shards[number].object for number in (0, 1, 2, 1)]


def test_a_damaged_shard_is_never_read(store: Counted) -> None:
    shard = write(store, "s", 0, 0, rows(0, 5))
    store.put(shard.object, store.get(shard.object).replace(b"p3", b"q3"))
    with pytest.raises(BadShard, match="not the ones written"):
        ShardReader(store).row(task(shard, 0))


def test_a_shard_that_is_gone_is_not_a_store_that_is_away(store: Counted) -> None:
    with pytest.raises(BadShard, match="is gone from the store"):
        ShardReader(store).row(task(PromptShard("prompts/s/00000000-0.jsonl", 0, 5), 0))


@pytest.mark.parametrize("index", [29, 40])
def test_a_task_beyond_its_shard_is_named(store: Counted, index: int) -> None:
    shard = write(store, "s", 3, 30, rows(30, 10))
    with pytest.raises(BadShard, match=f"none of index {index}"):
        ShardReader(store).row(task(shard, index))


@pytest.mark.parametrize("line", [b"{", b"[]", b'{"prompt": "p"}', b'{"prompt": 3, "columns": {}}', b""])
def test_a_line_that_no_submitter_wrote_is_no_prompt(store: Counted, line: bytes) -> None:
    data = line + b"\n"
    key = f"prompts/s/00000000-{blake3(data).hexdigest()[:DIGEST_CHARACTERS]}.jsonl"
    store.put(key, data)
    with pytest.raises(BadShard, match="line 1"):
        ShardReader(store).row(task(PromptShard(key, 0, 1), 0))
