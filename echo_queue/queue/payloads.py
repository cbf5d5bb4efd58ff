"""Where the bytes of a group lie: in its replay entry, or in object storage when they are many.

- Stored under the hash of its content before its completion is told, removed after it is trained or refused:
  a crash in between leaves an orphan, never an entry without its bytes.
- Read back only if the entry's plain fields say the same as the bytes: a worker is not believed twice.
"""

from collections.abc import Iterable
from typing import Protocol

import blake3

from echo_queue.codec import CodecError, decode
from echo_queue.errors import Problem, ServiceError
from echo_queue.queue.replies import text
from echo_queue.records import Group

PREFIX = "replay/"


class Spill(Protocol):
    """What is needed of `echo_queue.store.ObjectStore`."""

    def put(self, key: str, data: bytes) -> object: ...
    def get(self, key: str) -> bytes: ...
    def delete(self, keys: list[str]) -> object: ...


class Payloads:
    """Payloads above `inline_max_bytes` go to `store`; without one, all stay in the stream."""

    def __init__(self, store: Spill | None, inline_max_bytes: int) -> None:
        self.store = store
        self.inline_max_bytes = inline_max_bytes

    def keep(self, data: bytes) -> tuple[str, bytes]:
        """The field and its value that the replay entry gets."""
        if len(data) <= self.inline_max_bytes or self.store is None:
            return "group", data
        ref = _reference(data)
        self.store.put(ref, data)
        return "ref", ref.encode()

    def discard(self, refs: Iterable[bytes]) -> None:
        """Removes stored payloads that nothing points to any more."""
        keys = [text(ref) for ref in refs]
        if keys and self.store is not None:
            self.store.delete(keys)

    def group(self, words: dict[bytes, bytes]) -> Group:
        """The group of a replay entry. Raises `CodecError` if its bytes are no group, or another one."""
        group = decode(words[b"group"] if b"group" in words else self._fetch(text(words[b"ref"])))
        said = (text(words[b"id"]), *(int(words[name]) for name in (b"oldest", b"newest", b"lineage")))
        if said != (group.task, group.oldest, group.newest, group.lineage):
            what = f"its entry says {said}, its content does not"
            raise CodecError(Problem("replay record", what, "look at the worker that made it"))
        return group

    def _fetch(self, ref: str) -> bytes:
        if self.store is None:
            raise ServiceError(Problem(ref, "lies in object storage, and this role has no store", "configure [store]"))
        from echo_queue.store import MissingObject  # a role without a store does without its libraries

        try:
            data = self.store.get(ref)
        except MissingObject:
            raise CodecError(Problem(ref, "is gone from object storage", "revive the task; who deleted it?")) from None
        if ref != _reference(data):
            raise CodecError(Problem(ref, "holds other bytes than its name says", "revive the task"))
        return data


def _reference(data: bytes) -> str:
    return PREFIX + blake3.blake3(data).hexdigest()
