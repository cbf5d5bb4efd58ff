"""What a rollout worker does with the queue: `library/worker.lua`, and what it reads of the weights."""

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from echo_queue.queue import replies
from echo_queue.queue.caller import Caller
from echo_queue.queue.events import Events
from echo_queue.queue.payloads import Payloads
from echo_queue.queue.published import TrustedWeights
from echo_queue.queue.types import Heartbeat, Lease, Outcome
from echo_queue.records import Group, PartialGroup, Version

if TYPE_CHECKING:
    from echo_queue.connections.secrets import Role


BEATS_MISSED = 5


class WorkerQueue(TrustedWeights, Events):
    """Leases tasks, keeps them, and hands them back, in part or whole. Methods take the worker's name."""

    ROLE: ClassVar["Role"] = "worker"

    def __init__(self, caller: Caller, payloads: Payloads | None = None) -> None:
        super().__init__(caller)
        self._payloads = payloads or Payloads()

    def lease(self, worker: str, version: Version, count: int) -> Lease:
        """Up to `count` tasks, those that came back first. `version`: the weights this worker serves.

        A partial rollout that no worker can have made is dropped and counted: its task starts anew.
        """
        reply = self._caller.call("lease", worker, *version, count, uuid.uuid4().hex)
        partials, bad = self._payloads.partials_of(replies.kept_of(reply))
        self.discard(worker, bad)
        return replace(replies.lease_of(reply), partials=partials)

    def renew(self, worker: str, held: Mapping[str, int]) -> list[str]:
        """Keeps leases; returns the ids no longer held. `held`: task id → the version of its oldest token."""
        words = [word for task in held.items() for word in task]
        lost = self._caller.call("renew", worker, *words) if held else []
        return [replies.text(task_id) for task_id in lost]

    def progress(self, worker: str, partials: Sequence[PartialGroup]) -> list[str]:
        """Keeps how far tasks are, in place of what was kept, for whoever leases them next. Returns the ids no longer
        held, of which nothing was kept. A full server keeps nothing either, which only costs tokens.

        Raises `CodecError` for what is no partial rollout, or a larger one than `queue.group_max_bytes`.
        """
        calls = [("progress", worker, *self._payloads.keep_partials(worker, one)) for one in partials]
        answered = self._caller.move("progress", calls, (worker, partials), optional=True) if calls else []
        return [one.task for one, kept in zip(partials, answered, strict=True) if not kept]

    def discard(self, worker: str, task_ids: Sequence[str]) -> int:
        """What was kept of these tasks, which `worker` holds, is of no use. Returns how many partials there were."""
        return int(self._caller.call("discard", worker, *task_ids)) if task_ids else 0

    def release(self, worker: str, task_ids: Sequence[str]) -> int:
        """Hands tasks back: the next sweep sends them on at no cost of an attempt."""
        return int(self._caller.call("release", worker, *task_ids)) if task_ids else 0

    def fail(self, worker: str, task_id: str, reason: str) -> bool:
        """The task could not be done: the next sweep counts an attempt. The last few KB of `reason` are kept."""
        return bool(self._caller.call("fail", worker, task_id, reason))

    def complete(self, worker: str, groups: Sequence[Group]) -> list[Outcome]:
        """Tasks → replay, in one round trip; the first completion of a task wins, whoever holds its lease.

        Raises `CodecError` for what is no group, or a larger one than `queue.group_max_bytes`.
        """
        calls = [("complete", worker, *self._payloads.keep_group(group)) for group in groups]
        answered = self._caller.move("complete", calls, (worker, groups)) if calls else []
        outcomes = [Outcome(replies.text(reply)) for reply in answered]
        refused = [
            payload for outcome, (*_, kind, payload) in zip(outcomes, calls, strict=True)
            if kind == "ref" and outcome is not Outcome.accepted
        ]  # fmt: skip
        self._payloads.discard(refused)
        return outcomes

    def heartbeat(self, worker: str, heartbeat: Heartbeat, every_s: float = 1.0) -> None:
        """Heartbeat; it expires once a few of them, `every_s` apart, are missing."""
        expire_ms = round(1000 * BEATS_MISSED * every_s)
        self._caller.call("heartbeat", worker, expire_ms, *replies.heartbeat_words(heartbeat))

    def leave(self, worker: str) -> None:
        """`worker` ends, and is no longer listed; what it still holds it keeps until its leases run out."""
        self._caller.call("leave", worker)
