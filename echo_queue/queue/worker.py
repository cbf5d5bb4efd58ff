"""The queue client of a rollout worker: the moves of `library/worker.lua`, and the published weights that it reads."""

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar

from echo_queue.queue import replies
from echo_queue.queue.caller import Caller
from echo_queue.queue.events import Offers, WeightEvents
from echo_queue.queue.payloads import Payloads
from echo_queue.queue.published_weights import TrustedWeights
from echo_queue.queue.types import Heartbeat, Lease, Outcome
from echo_queue.records import Group, PartialGroup, Version

if TYPE_CHECKING:
    from echo_queue.connections.secrets import Role


CALL_BYTES = 1 << 20
"""Groups of together at most this size are completed by one call, which holds the server for a few milliseconds."""
BEATS_MISSED = 5
"""A heartbeat expires after this many intervals without a new one."""


class WorkerQueue(TrustedWeights, WeightEvents, Offers):
    """Leases, renews, completes and hands back tasks as Redis user `worker`, through `library/worker.lua`.

    Methods take the worker's name.
    """

    ROLE: ClassVar["Role"] = "worker"

    def __init__(self, caller: Caller, payloads: Payloads | None = None) -> None:
        super().__init__(caller)
        self._payloads = payloads or Payloads()

    def lease(self, worker: str, version: Version, count: int) -> Lease:
        """Leases up to `count` tasks; tasks that came back are served first. `version`: the weights this worker serves.

        A partial rollout that fails the checks is dropped and counted, and its task starts from scratch.
        """
        reply = self._caller.call("lease", worker, *version, count, uuid.uuid4().hex)
        partials, bad = self._payloads.partials_of(replies.kept_of(reply))
        self.discard(worker, bad)
        return replace(replies.lease_of(reply), partials=partials)

    def renew(self, worker: str, held: Mapping[str, int]) -> list[str]:
        """Renews leases; returns the ids no longer held. `held`: task id → the version of its oldest token."""
        words = [word for task in held.items() for word in task]
        lost = self._caller.call("renew", worker, *words) if held else []
        return [replies.text(task_id) for task_id in lost]

    def progress(self, worker: str, partials: Sequence[PartialGroup]) -> list[str]:
        """Stores partial rollouts over earlier ones, for the worker that leases the tasks next.

        Returns the ids that `worker` no longer holds, for which nothing was stored. A full server stores nothing
        either; that only costs tokens, and its tasks are not among the ids returned. Raises `CodecError` for a value
        that is not a partial rollout, or that is larger than `queue.group_max_bytes`.
        """
        calls = [("progress", worker, *self._payloads.keep_partials(worker, partial)) for partial in partials]
        answered = self._caller.move("progress", calls, (worker, partials), optional=True) if calls else []
        return [partial.task for partial, stored in zip(partials, answered, strict=True) if not stored]

    def discard(self, worker: str, task_ids: Sequence[str]) -> int:
        """Drops the partial rollouts of these tasks, as far as `worker` holds them. Returns how many were dropped."""
        return int(self._caller.call("discard", worker, *task_ids)) if task_ids else 0

    def release(self, worker: str, task_ids: Sequence[str]) -> int:
        """Hands tasks back; the next sweep moves them to retry, which costs no attempt. Returns how many were held."""
        return int(self._caller.call("release", worker, *task_ids)) if task_ids else 0

    def fail(self, worker: str, task_id: str, reason: str) -> bool:
        """Gives up one attempt at a task, which the next sweep counts. The last 8 KB of `reason` are kept.

        Returns False if `worker` no longer holds the task.
        """
        return bool(self._caller.call("fail", worker, task_id, reason))

    def complete(self, worker: str, groups: Sequence[Group]) -> list[Outcome]:
        """Moves tasks to replay, in one round trip. The first completion wins, no matter which worker holds the lease.

        Raises `CodecError` for a value that is not a group, or that is larger than `queue.group_max_bytes`.
        """
        kept = [self._payloads.keep_group(group) for group in groups]
        calls = [("complete", worker, *chain.from_iterable(words)) for words in _calls(kept)]
        answered = self._caller.move("complete", calls, (worker, groups)) if calls else []
        outcomes = [Outcome(replies.text(outcome)) for outcome in chain.from_iterable(answered)]
        refused = [
            payload for outcome, (*_, kind, payload) in zip(outcomes, kept, strict=True)
            if kind == "ref" and outcome is not Outcome.accepted
        ]  # fmt: skip
        self._payloads.discard(refused)
        return outcomes

    def heartbeat(self, worker: str, heartbeat: Heartbeat, every_s: float = 1.0) -> None:
        """Records a heartbeat. It expires once `BEATS_MISSED` of them, `every_s` apart, are missing."""
        expire_ms = round(1000 * BEATS_MISSED * every_s)
        self._caller.call("heartbeat", worker, expire_ms, *replies.heartbeat_words(heartbeat))

    def leave(self, worker: str) -> None:
        """Removes `worker`, which ends, from the list. Tasks that it holds stay leased until their leases run out."""
        self._caller.call("leave", worker)


def _calls(kept: Sequence[tuple[Any, ...]]) -> Iterator[list[tuple[Any, ...]]]:
    """Divides completions, each with its payload last, among calls. Each call is one write of the append-only file."""
    call: list[tuple[Any, ...]] = []
    size = 0
    for words in kept:
        if call and size + len(words[-1]) > CALL_BYTES:
            yield call
            call, size = [], 0
        call.append(words)
        size += len(words[-1])
    if call:
        yield call
