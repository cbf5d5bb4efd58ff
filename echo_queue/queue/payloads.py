"""Stores the bytes of groups and partial rollouts: in Redis, or in object storage if they are large.

- Every object has a name that is never used again, so that a removal takes nothing that was stored later.
- A group is stored before its completion is reported, and removed after it is trained or refused. A crash in between
  leaves an orphan (`orphans.py` finds it), never an entry without its bytes.
- Partial rollouts are stored in segments, a large one as an object. Whoever drops a partial rollout notes its objects
  as unwanted, and the housekeeper removes them.
- Both are read back only if they agree with what the worker reported to the queue, and if the reader's own checks
  (`validator`, `limits`) pass. No worker's report is trusted unchecked, and nothing outside `replay/` and `partials/`
  is ever removed because of one.
"""

import hashlib
import logging
import re
import secrets
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from blake3 import blake3

from echo_queue.errors import Problem, ServiceError
from echo_queue.queue.payload_fields import COMPLETE_WORDS, UNCHECKED_WORDS, entry_fields, progress_fields
from echo_queue.queue.types import StoredPartial
from echo_queue.records import Group, PartialGroup, PartialSegment, group_codec, partial_codec
from echo_queue.records.group_codec import GROUP_MAX_BYTES, CodecError
from echo_queue.records.segments import join
from echo_queue.records.validation import BadGroup, GroupLimits, GroupValidator, check_partials

if TYPE_CHECKING:
    from echo_queue.config import Config

log = logging.getLogger(__name__)

INLINE_MAX_BYTES = 1 << 20
REPLAY, PARTIALS = "replay/", "partials/"
GROUP_REFERENCE = re.compile(rf"{REPLAY}[0-9a-f]{{40}}/[0-9a-f]{{64}}-[0-9a-f]{{16}}")
"""The folder is the SHA-1 of the task's id, which the server's Lua can check; the name is the content's BLAKE3 and what
is drawn by lot, since a worker that generates without chance makes the same bytes again when its task comes back."""
PARTIALS_KEY = re.compile(rf"{PARTIALS}[0-9a-f]{{40}}/[0-9a-f]{{40}}")
"""The folder is the SHA-1 of the task's id, the name is drawn by lot."""
PARTIALS_REFERENCE = re.compile(rf"({PARTIALS_KEY.pattern}) ([0-9a-f]{{64}})")
"""The key, and the content's BLAKE3."""
MARK_BYTES = 16


class MissingPayload(CodecError):
    """The object store does not have a payload that was stored. It may have lost it, so nobody is to blame."""

    cause = "missing"


class PayloadStore(Protocol):
    """The methods of `echo_queue.connections.storage.object_store.ObjectStore` that payloads need."""

    def put(self, key: str, data: bytes) -> object: ...
    def get(self, key: str, most_bytes: int | None = None) -> bytes: ...
    def delete(self, keys: list[str]) -> object: ...


class Payloads:
    """Encodes, stores, reads and checks payloads.

    Payloads above `inline_max_bytes` go to `store`; without a store, all stay in Redis. No payload is above
    `max_bytes`. `validator`: the learner's; without it, only a group's bytes and its entry are compared. `limits`: the
    limits that partial rollouts must respect, besides their form, before a worker continues them.
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
        """Returns the payloads of the configured run."""
        settings = config.queue
        return cls(store, settings.inline_max_bytes, settings.group_max_bytes, validator=validator, limits=limits)

    def keep_group(self, group: Group) -> tuple[Any, ...]:
        """Stores a group and returns the arguments of `complete`, its payload last.

        Raises `CodecError` for a value that is not a group, or that is too large.
        """
        data, entry = self._capped(group.task, "takes", group_codec.encode(group)), entry_fields(group)
        words = tuple(entry[name] for name in COMPLETE_WORDS)
        if self._store is None or len(data) <= self._inline_max_bytes:
            return *words, "group", data
        ref = new_reference(group.task, data)
        self._store.put(ref, data)
        return *words, "ref", ref.encode()

    def keep_segment(self, segment: PartialSegment) -> tuple[str, bytes]:
        """Stores a segment of partial rollouts; returns its kind and payload, the last arguments of `progress`.

        Raises `CodecError` for a value that is none, or that is too large.
        """
        task, data = segment.gained.task, partial_codec.encode(segment)
        self._capped(task, "its partial rollout takes", data)
        if self._store is None or len(data) <= self._inline_max_bytes:
            return "segment", data
        key = partials_folder(task) + secrets.token_hex(20)
        self._store.put(key, data)
        return "ref", f"{key} {blake3(data).hexdigest()}".encode()

    @property
    def inline_max_bytes(self) -> int | None:
        """The size above which payloads go to the object store; None without one."""
        return None if self._store is None else self._inline_max_bytes

    def discard(self, refs: Iterable[bytes]) -> None:
        """Removes stored groups that nothing points to any more. References to anything else are ignored.

        Objects that this role may not remove, or cannot remove now, stay; `orphans.py` finds them.
        """
        keys = [key for key in (ref.decode("utf-8", "replace") for ref in refs) if GROUP_REFERENCE.fullmatch(key)]
        if keys and self._store is not None:
            try:
                self._store.delete(keys)
            except ServiceError as error:
                log.info("%d stored groups are left to the learner's sweep: %s", len(keys), error.problems[0].what)

    def group(self, words: Mapping[bytes, bytes]) -> Group:
        """Returns the group of a replay entry. Raises `CodecError` if its bytes are not that group, or if it is bad.

        Raises `UnfitGroup` if limits that have changed since it was made exclude it, and `MissingPayload` if the store
        has lost it; then nobody is blamed.
        """
        sender = words.get(b"worker", b"").decode("utf-8", "replace")
        group = self._checked_group(words)
        if self._validator:
            self._validator.good(sender)
        return group

    def blame(self, worker: str, task: str, error: CodecError) -> None:
        """Notes that `worker` sent a bad group of `task`."""
        if self._validator:
            self._validator.bad(worker, task, error.problems[0].what)

    def partials(self, task: str, kept: StoredPartial) -> PartialGroup:
        """Returns the partial rollouts of a task. Raises `CodecError` if they differ from what the queue was told."""
        partials = self._joined(task, kept)
        said, told = progress_fields(partials), (task, kept.oldest, kept.newest, kept.lineage, kept.tokens)
        if said != told:
            what = f"its partial rollout says {said}, the queue was told {told}"
            raise CodecError(Problem(task, what, "inspect the worker that stored it"))
        if self._limits is not None:
            check_partials(partials, self._limits)
        return partials

    def partials_of(self, kept: Mapping[str, StoredPartial]) -> tuple[dict[str, PartialGroup], list[str]]:
        """Returns the partial rollouts by task id, and the ids of tasks whose partial rollouts cannot be continued."""
        partials, bad = {}, []
        for task, words in kept.items():
            try:
                partials[task] = self.partials(task, words)
            except CodecError as error:
                log.warning("%s starts from scratch: %s", task, error.problems[0].what)
                bad.append(task)
        return partials, bad

    def _capped(self, task: str, takes: str, data: bytes) -> bytes:
        if len(data) > self._max_bytes:
            what = f"{takes} {len(data)} bytes; queue.group_max_bytes is {self._max_bytes}"
            raise CodecError(Problem(task, what, "raise it, or lower model.max_new_tokens or rollout.group_size"))
        return data

    def _joined(self, task: str, kept: StoredPartial) -> PartialGroup:
        """Puts the segments together. Raises `CodecError` unless they are those that the queue was told of."""
        mark, left, segments = "", self._max_bytes, []
        for kind, payload in kept.segments:
            mark = mark_after(mark, kind, payload)
            data = self._stored_segment(task, payload) if kind == "ref" else payload
            segments.append(partial_codec.decode(data, left))
            left -= len(data)
        if not segments or mark != kept.mark:
            what = "its segments are not those that the queue was told of"
            raise CodecError(Problem(task, what, "inspect the worker that stored them"))
        return join(segments)

    def _checked_group(self, words: Mapping[bytes, bytes]) -> Group:
        data = words[b"group"] if b"group" in words else self._stored_group(words)
        group = group_codec.decode(data, self._max_bytes)
        for name, told in entry_fields(group).items():
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
        if not ref.startswith(_hashed(task, data)):
            raise CodecError(Problem(ref, "holds other bytes than its name says", "revive the task"))
        return data

    def _stored_segment(self, task: str, payload: bytes) -> bytes:
        found = PARTIALS_REFERENCE.fullmatch(payload.decode("utf-8", "replace"))
        if found is None or not found[1].startswith(partials_folder(task)):
            what = "the queue's entry does not point to a partial rollout of this task"
            raise CodecError(Problem(task, what, "inspect the worker that stored it"))
        data = self._load(found[1])
        if blake3(data).hexdigest() != found[2]:
            raise CodecError(Problem(found[1], "is not what the queue was told of", "inspect its worker"))
        return data

    def _load(self, key: str) -> bytes:
        if self._store is None:
            raise ServiceError(Problem(key, "lies in object storage, and this role has no store", "configure [store]"))
        # Imported late, since a role without a store needs no store libraries.
        from echo_queue.connections.storage.object_store import LargeObject, MissingObject

        try:
            return self._store.get(key, self._max_bytes)
        except MissingObject:
            what = "is gone from object storage, each time that it was generated"
            raise MissingPayload(Problem(key, what, "find out who deletes objects; then revive the task")) from None
        except LargeObject as error:
            raise CodecError(*error.problems) from None


def folder(task: str) -> str:
    """Returns the folder of a task's stored groups."""
    return f"{REPLAY}{_sha1(task)}/"


def partials_folder(task: str) -> str:
    """Returns the folder of a task's stored partial rollouts."""
    return f"{PARTIALS}{_sha1(task)}/"


def mark_after(mark: str, kind: str, payload: bytes) -> str:
    """Returns the mark of a partial rollout once this segment follows what `mark` identifies; "" is nothing yet."""
    return blake3(f"{mark} {kind} ".encode() + payload).hexdigest(MARK_BYTES)


def new_reference(task: str, data: bytes) -> str:
    """Returns a new key for a group with these bytes."""
    return _hashed(task, data) + secrets.token_hex(8)


def _hashed(task: str, data: bytes) -> str:
    """Returns the part of a group's key that its task and its bytes decide."""
    return f"{folder(task)}{blake3(data).hexdigest()}-"


def _sha1(name: str) -> str:
    return hashlib.sha1(name.encode(), usedforsecurity=False).hexdigest()
