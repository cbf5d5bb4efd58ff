"""Where the bytes of a group lie: in its replay entry, or in object storage when they are many.

- Stored under its task and the hash of its content before its completion is told, removed after it is trained or
  refused: a crash in between leaves an orphan (`orphans.py` finds it), never an entry without its bytes.
- Read back only if the entry's plain fields say the same as the bytes, and what vetting there is finds nothing: a
  worker is not believed twice. Nothing outside `replay/` is ever read or removed on a worker's word.
"""

import hashlib
import logging
import re
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import blake3

from echo_queue.errors import Problem, ServiceError
from echo_queue.records import Group
from echo_queue.records.group_codec import GROUP_MAX_BYTES, CodecError, decode
from echo_queue.records.validation import BadGroup, GroupValidator

log = logging.getLogger(__name__)

PREFIX = "replay/"
REFERENCE = re.compile(rf"{PREFIX}[0-9a-f]{{40}}/[0-9a-f]{{64}}")
"""SHA-1 of the task's id, which the server's Lua can check, and BLAKE3 of the content."""


class PayloadStore(Protocol):
    """What is needed of `echo_queue.storage.object_store.ObjectStore`."""

    def put(self, key: str, data: bytes) -> object: ...
    def get(self, key: str, most_bytes: int | None = None) -> bytes: ...
    def delete(self, keys: list[str]) -> object: ...


class Payloads:
    """Payloads above `inline_max_bytes` go to `store`; without one, all stay in the stream. None is above `max_bytes`.

    `validator`: a learner's; without it only the bytes and the entry are compared.
    """

    def __init__(self, store: PayloadStore | None, inline_max_bytes: int, max_bytes: int = GROUP_MAX_BYTES) -> None:
        self.store = store
        self.inline_max_bytes = inline_max_bytes
        self.max_bytes = max_bytes
        self.validator: GroupValidator | None = None

    def keep(self, task: str, data: bytes) -> tuple[str, bytes]:
        """The field and its value that the replay entry of `task` gets. Raises `CodecError` for what is too large."""
        if len(data) > self.max_bytes:
            what = f"takes {len(data)} bytes; queue.group_max_bytes is {self.max_bytes}"
            raise CodecError(Problem(task, what, "raise it, or lower model.max_new_tokens or rollout.group_size"))
        if len(data) <= self.inline_max_bytes or self.store is None:
            return "group", data
        ref = reference(task, data)
        self.store.put(ref, data)
        return "ref", ref.encode()

    def discard(self, refs: Iterable[bytes]) -> None:
        """Removes stored payloads that nothing points to any more; what names anything else is left alone.

        So is what this role may not remove, or cannot now: `orphans.py` finds it.
        """
        keys = [key for key in (ref.decode("utf-8", "replace") for ref in refs) if REFERENCE.fullmatch(key)]
        if keys and self.store is not None:
            try:
                self.store.delete(keys)
            except ServiceError as error:
                log.info("%d stored groups are left to the learner's sweep: %s", len(keys), error.problems[0].what)

    def group(self, words: Mapping[bytes, bytes]) -> Group:
        """The group of a replay entry. Raises `CodecError` if its bytes are no group, another one, or a bad one."""
        sender = words.get(b"worker", b"").decode("utf-8", "replace")
        try:
            group = self._checked(words)
        except CodecError as error:
            if self.validator:
                self.validator.bad(sender, error.problems[0].what)
            raise
        if self.validator:
            self.validator.good(sender)
        return group

    def _checked(self, words: Mapping[bytes, bytes]) -> Group:
        group = decode(words[b"group"] if b"group" in words else self._fetch(words), self.max_bytes)
        for name, told in told_of(group).items():
            said = words.get(name.encode(), b"").decode("utf-8", "replace")
            if said != told:
                raise BadGroup("entry", f"its entry says {name} {said}, its content does not: {told}")
        if self.validator:
            self.validator.check(group)
        return group

    def _fetch(self, words: Mapping[bytes, bytes]) -> bytes:
        ref = words.get(b"ref", b"").decode("utf-8", "replace")
        task = words.get(b"id", b"").decode("utf-8", "replace")
        if not REFERENCE.fullmatch(ref) or not ref.startswith(folder(task)):
            raise BadGroup("entry", f"its entry points to {ref or 'nothing'}, which is no payload of its task")
        if self.store is None:
            raise ServiceError(Problem(ref, "lies in object storage, and this role has no store", "configure [store]"))
        from echo_queue.storage.object_store import (  # a role without a store does without its libraries
            LargeObject,
            MissingObject,
        )

        try:
            data = self.store.get(ref, self.max_bytes)
        except MissingObject:
            raise CodecError(Problem(ref, "is gone from object storage", "revive the task; who deleted it?")) from None
        except LargeObject as error:
            raise CodecError(*error.problems) from None
        if ref != reference(task, data):
            raise CodecError(Problem(ref, "holds other bytes than its name says", "revive the task"))
        return data


def told_of(group: Group) -> dict[str, str]:
    """The plain fields of a replay entry, as its content tells them; but for the mean reward, which is for people."""
    numbers: dict[str, Any] = {
        "epoch": group.epoch,
        "index": group.index,
        "oldest": group.oldest,
        "newest": group.newest,
        "lineage": group.lineage,
        "samples": len(group.samples),
        "tokens": sum(len(sample.tokens) for sample in group.samples),
    }
    names = {"id": group.task, "set": group.set, "worker": group.worker}
    return names | {name: str(number) for name, number in numbers.items()}


def folder(task: str) -> str:
    """Where the payloads of a task lie."""
    return f"{PREFIX}{hashlib.sha1(task.encode(), usedforsecurity=False).hexdigest()}/"


def reference(task: str, data: bytes) -> str:
    return folder(task) + blake3.blake3(data).hexdigest()
