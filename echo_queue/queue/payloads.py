"""Where the bytes of groups and partial rollouts lie: in Redis, or in object storage when they are many.

- A group is stored under its task and the hash of its content before its completion is told, and removed after it is
  trained or refused. A crash in between leaves an orphan (`orphans.py` finds it), never an entry without its bytes.
- A worker stores the partial rollouts of a task under the task's and its own name, over its earlier ones, so that a
  long task leaves no trail. What it stored and could not tell of is noticed by its digest, and only costs the tokens.
- Both are read back only if they say the same as the queue was told, and if the reader's checks (`validator`, `limits`)
  find nothing: a worker is not believed twice. Nothing outside `replay/` is ever removed on a worker's word.
"""

import hashlib
import logging
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from blake3 import blake3

from echo_queue.errors import Problem, ServiceError
from echo_queue.queue.entries import COMPLETE_WORDS, UNCHECKED_WORDS, entry_of, told_of
from echo_queue.queue.types import StoredPartial
from echo_queue.records import Group, PartialGroup, group_codec, partial_codec
from echo_queue.records.group_codec import GROUP_MAX_BYTES, CodecError
from echo_queue.records.validation import BadGroup, GroupLimits, GroupValidator, check_partials

if TYPE_CHECKING:
    from echo_queue.config import Config

log = logging.getLogger(__name__)

INLINE_MAX_BYTES = 1 << 20
REPLAY, PARTIALS = "replay/", "partials/"
GROUP_REFERENCE = re.compile(rf"{REPLAY}[0-9a-f]{{40}}/[0-9a-f]{{64}}")
"""SHA-1 of the task's id, which the server's Lua can check, and BLAKE3 of the content."""
PARTIALS_REFERENCE = re.compile(rf"({PARTIALS}[0-9a-f]{{40}}/[0-9a-f]{{40}}) ([0-9a-f]{{64}})")
"""SHA-1 of the task's id and of the worker's name, then BLAKE3 of the content."""


class PayloadStore(Protocol):
    """What is needed of `echo_queue.storage.object_store.ObjectStore`."""

    def put(self, key: str, data: bytes) -> object: ...
    def get(self, key: str, most_bytes: int | None = None) -> bytes: ...
    def delete(self, keys: list[str]) -> object: ...


class Payloads:
    """Payloads above `inline_max_bytes` go to `store`; without one, all stay in Redis. None is above `max_bytes`.

    `validator`: a learner's; without it only a group's bytes and its entry are compared. `limits`: what a worker that
    goes on with partial rollouts asks of them besides their form.
    """

    def __init__(
        self,
        store: PayloadStore | None = None,
        inline_max_bytes: int = INLINE_MAX_BYTES,
        max_bytes: int = GROUP_MAX_BYTES,
        *,
        validator: GroupValidator | None = None,
        limits: GroupLimits | None = None,
    ) -> None:
        self._store = store
        self._inline_max_bytes = inline_max_bytes
        self._max_bytes = max_bytes
        self._validator = validator
        self._limits = limits

    @classmethod
    def of(
        cls,
        config: "Config",
        store: PayloadStore | None = None,
        *,
        validator: GroupValidator | None = None,
        limits: GroupLimits | None = None,
    ) -> "Payloads":
        """The payloads of the configured run."""
        settings = config.queue
        return cls(store, settings.inline_max_bytes, settings.group_max_bytes, validator=validator, limits=limits)

    def keep_group(self, group: Group) -> tuple[Any, ...]:
        """What `complete` is told of a group, its payload last. Raises `CodecError` for what is none, or too large."""
        data, entry = self._capped(group.task, "takes", group_codec.encode(group)), entry_of(group)
        words = tuple(entry[name] for name in COMPLETE_WORDS)
        if self._store is None or len(data) <= self._inline_max_bytes:
            return *words, "group", data
        ref = reference(group.task, data)
        self._store.put(ref, data)
        return *words, "ref", ref.encode()

    def keep_partials(self, worker: str, partials: PartialGroup) -> tuple[Any, ...]:
        """What `progress` is told of partial rollouts, their payload last. Raises `CodecError` as `keep_group` does."""
        task, data = partials.task, partial_codec.encode(partials)
        self._capped(task, "its partial rollout takes", data)
        if self._store is None or len(data) <= self._inline_max_bytes:
            return *told_of(partials), "partial", data
        key = partials_folder(task) + _sha1(worker)
        self._store.put(key, data)
        return *told_of(partials), "ref", f"{key} {blake3(data).hexdigest()}".encode()

    def discard(self, refs: Iterable[bytes]) -> None:
        """Removes stored groups that nothing points to any more; what names anything else is left alone.

        So is what this role may not remove, or cannot now: `orphans.py` finds it.
        """
        keys = [key for key in (ref.decode("utf-8", "replace") for ref in refs) if GROUP_REFERENCE.fullmatch(key)]
        if keys and self._store is not None:
            try:
                self._store.delete(keys)
            except ServiceError as error:
                log.info("%d stored groups are left to the learner's sweep: %s", len(keys), error.problems[0].what)

    def group(self, words: Mapping[bytes, bytes]) -> Group:
        """The group of a replay entry. Raises `CodecError` if its bytes are no group, another one, or a bad one."""
        sender = words.get(b"worker", b"").decode("utf-8", "replace")
        try:
            group = self._checked_group(words)
        except CodecError as error:
            if self._validator:
                self._validator.bad(sender, error.problems[0].what)
            raise
        if self._validator:
            self._validator.good(sender)
        return group

    def partials(self, task: str, kept: StoredPartial) -> PartialGroup:
        """Raises `CodecError` for what says another thing than the queue was told."""
        data = self._stored_partials(task, kept.payload) if kept.kind == "ref" else kept.payload
        partials = partial_codec.decode(data, self._max_bytes)
        said, told = told_of(partials), (task, kept.oldest, kept.newest, kept.lineage, kept.tokens)
        if said != told:
            what = f"its partial rollout says {said}, the queue was told {told}"
            raise CodecError(Problem(task, what, "look at its worker"))
        if self._limits is not None:
            check_partials(partials, self._limits)
        return partials

    def partials_of(self, kept: Mapping[str, StoredPartial]) -> tuple[dict[str, PartialGroup], list[str]]:
        """The partial rollouts by their task's ids; and the tasks of which there is none that may be gone on with."""
        partials, bad = {}, []
        for task, words in kept.items():
            try:
                partials[task] = self.partials(task, words)
            except CodecError as error:
                log.warning("%s starts anew: %s", task, error.problems[0].what)
                bad.append(task)
        return partials, bad

    def _capped(self, task: str, takes: str, data: bytes) -> bytes:
        if len(data) > self._max_bytes:
            what = f"{takes} {len(data)} bytes; queue.group_max_bytes is {self._max_bytes}"
            raise CodecError(Problem(task, what, "raise it, or lower model.max_new_tokens or rollout.group_size"))
        return data

    def _checked_group(self, words: Mapping[bytes, bytes]) -> Group:
        data = words[b"group"] if b"group" in words else self._stored_group(words)
        group = group_codec.decode(data, self._max_bytes)
        for name, told in entry_of(group).items():
            said = words.get(name.encode(), b"").decode("utf-8", "replace")
            if said != told and name not in UNCHECKED_WORDS:
                raise BadGroup("entry", f"its entry says {name} {said}, its content does not: {told}")
        if self._validator:
            self._validator.check(group)
        return group

    def _stored_group(self, words: Mapping[bytes, bytes]) -> bytes:
        ref = words.get(b"ref", b"").decode("utf-8", "replace")
        task = words.get(b"id", b"").decode("utf-8", "replace")
        if not GROUP_REFERENCE.fullmatch(ref) or not ref.startswith(folder(task)):
            raise BadGroup("entry", f"its entry points to {ref or 'nothing'}, which is no payload of its task")
        data = self._load(ref)
        if ref != reference(task, data):
            raise CodecError(Problem(ref, "holds other bytes than its name says", "revive the task"))
        return data

    def _stored_partials(self, task: str, payload: bytes) -> bytes:
        found = PARTIALS_REFERENCE.fullmatch(payload.decode("utf-8", "replace"))
        if found is None or not found[1].startswith(partials_folder(task)):
            what = "the queue was told of no partial rollout of this task"
            raise CodecError(Problem(task, what, "look at its worker"))
        data = self._load(found[1])
        if blake3(data).hexdigest() != found[2]:
            raise CodecError(Problem(found[1], "is not what the queue was told of", "look at its worker"))
        return data

    def _load(self, key: str) -> bytes:
        if self._store is None:
            raise ServiceError(Problem(key, "lies in object storage, and this role has no store", "configure [store]"))
        from echo_queue.storage.object_store import (  # a role without a store does without its libraries
            LargeObject,
            MissingObject,
        )

        try:
            return self._store.get(key, self._max_bytes)
        except MissingObject:
            raise CodecError(Problem(key, "is gone from object storage", "revive the task; who deleted it?")) from None
        except LargeObject as error:
            raise CodecError(*error.problems) from None


def folder(task: str) -> str:
    """Where the stored groups of a task lie."""
    return f"{REPLAY}{_sha1(task)}/"


def partials_folder(task: str) -> str:
    """Where the stored partial rollouts of a task lie."""
    return f"{PARTIALS}{_sha1(task)}/"


def reference(task: str, data: bytes) -> str:
    """Where a group of these bytes lies."""
    return folder(task) + blake3(data).hexdigest()


def _sha1(name: str) -> str:
    return hashlib.sha1(name.encode(), usedforsecurity=False).hexdigest()
