"""Where the bytes of partial rollouts lie: in the hash `partials`, or in object storage when they are many.

- A worker stores the partials of a task under the task's and its own name, over its earlier ones, so that a long task
  leaves no trail. What it stored and could not tell of is noticed by its digest, and only costs the tokens.
- Read back only if it says the same as what the queue was told of it, and a worker of this run can have made it.
"""

import hashlib
import logging
import re
from collections.abc import Mapping
from typing import Any

from blake3 import blake3

from echo_queue.errors import Problem, ServiceError
from echo_queue.queue.payloads import PayloadStore
from echo_queue.queue.types import Kept
from echo_queue.records import PartialGroup
from echo_queue.records import partial_codec as codec
from echo_queue.records.group_codec import GROUP_MAX_BYTES, CodecError
from echo_queue.records.validation import GroupLimits, check_partials

log = logging.getLogger(__name__)

PREFIX = "partials/"
REFERENCE = re.compile(rf"({PREFIX}[0-9a-f]{{40}}/[0-9a-f]{{40}}) ([0-9a-f]{{64}})")
"""SHA-1 of the task's id and of the worker's name, then BLAKE3 of the content."""


class PartialPayloads:
    """Partials above `inline_max_bytes` go to `store`; without one, all stay in Redis. None is above `max_bytes`.

    `limits`: what a worker that goes on with partial rollouts asks of them besides their form.
    """

    def __init__(self, store: PayloadStore | None, inline_max_bytes: int, max_bytes: int = GROUP_MAX_BYTES) -> None:
        self.limits: GroupLimits | None = None
        self._store = store
        self._inline_max_bytes = inline_max_bytes
        self._max_bytes = max_bytes

    def keep(self, worker: str, partials: PartialGroup) -> tuple[Any, ...]:
        """What `progress` is told of them. Raises `CodecError`."""
        data, tokens = codec.encode(partials), codec.tokens(partials)
        if len(data) > self._max_bytes:
            what = f"its partial rollout takes {len(data)} bytes; queue.group_max_bytes is {self._max_bytes}"
            fix = "raise it, or lower model.max_new_tokens or rollout.group_size"
            raise CodecError(Problem(partials.task, what, fix))
        oldest, newest = codec.versions(partials) if tokens else (0, 0)
        return partials.task, oldest, newest, partials.lineage, tokens, *self._laid(worker, partials.task, data)

    def partials_of(self, kept: Mapping[str, Kept]) -> tuple[dict[str, PartialGroup], list[str]]:
        """The partial rollouts by their task's ids; and the tasks of which there is none that may be gone on with."""
        partials, bad = {}, []
        for task, words in kept.items():
            try:
                partials[task] = self.partials(task, words)
            except CodecError as error:
                log.warning("%s starts anew: %s", task, error.problems[0].what)
                bad.append(task)
        return partials, bad

    def partials(self, task: str, kept: Kept) -> PartialGroup:
        """Raises `CodecError` for what says another thing than the queue was told."""
        data = self._fetch(task, kept.payload) if kept.kind == "ref" else kept.payload
        partials = codec.decode(data, self._max_bytes)
        tokens = codec.tokens(partials)
        said = partials.task, *(codec.versions(partials) if tokens else (0, 0)), partials.lineage, tokens
        told = task, kept.oldest, kept.newest, kept.lineage, kept.tokens
        if said != told:
            raise CodecError(
                Problem(task, f"its partial rollout says {said}, the queue was told {told}", "look at its worker")
            )
        if self.limits is not None:
            check_partials(partials, self.limits)
        return partials

    def _laid(self, worker: str, task: str, data: bytes) -> tuple[str, bytes]:
        if len(data) <= self._inline_max_bytes or self._store is None:
            return "partial", data
        key = folder(task) + _sha1(worker)
        self._store.put(key, data)
        return "ref", f"{key} {blake3(data).hexdigest()}".encode()

    def _fetch(self, task: str, payload: bytes) -> bytes:
        found = REFERENCE.fullmatch(payload.decode("utf-8", "replace"))
        if found is None or not found[1].startswith(folder(task)):
            raise CodecError(
                Problem(task, "the queue was told of no partial rollout of this task", "look at its worker")
            )
        if self._store is None:
            raise ServiceError(
                Problem(found[1], "lies in object storage, and this role has no store", "configure [store]")
            )
        from echo_queue.storage.object_store import (  # a role without a store does without its libraries
            LargeObject,
            MissingObject,
        )

        try:
            data = self._store.get(found[1], self._max_bytes)
        except (MissingObject, LargeObject) as error:
            raise CodecError(Problem(found[1], f"cannot be read: {error}", "")) from None
        if blake3(data).hexdigest() != found[2]:
            raise CodecError(Problem(found[1], "is not what the queue was told of", ""))
        return data


def folder(task: str) -> str:
    """Where the stored partial rollouts of a task lie."""
    return f"{PREFIX}{_sha1(task)}/"


def _sha1(name: str) -> str:
    return hashlib.sha1(name.encode(), usedforsecurity=False).hexdigest()
