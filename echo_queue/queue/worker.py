"""The queue client of a rollout worker: the moves of `leasing.lua`, `completion.lua` and `partials.lua` in `library/`,
and the published weights that it reads.
"""

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any, ClassVar

from echo_queue.queue import replies
from echo_queue.queue.caller import Caller, divided
from echo_queue.queue.events import Offers, WeightEvents
from echo_queue.queue.payloads import Payloads
from echo_queue.queue.published_weights import TrustedWeights
from echo_queue.queue.sent_progress import SentProgress, Step
from echo_queue.queue.types import Departure, Heartbeat, Lease, Outcome, Stored, WorkerOrder
from echo_queue.records import Group, PartialGroup, Version

if TYPE_CHECKING:
    from echo_queue.connections.secrets import Role


CALL_BYTES = 1 << 20
"""Groups of together at most this size are completed by one call, which holds the server for a few milliseconds and is
one write of the append-only file."""
PROGRESS_BYTES = 1 << 17
"""The size of segments that one call of `progress` carries, since the server serves nobody else meanwhile."""
BEATS_MISSED = 5
"""A heartbeat expires after this many intervals without a new one."""


class WorkerQueue(TrustedWeights, WeightEvents, Offers):
    """Leases, renews, completes and hands back tasks as Redis user `worker`, through `library/leasing.lua`.

    `library/partials.lua` has the moves of partial rollouts. Methods take the worker's name.
    """

    ROLE: ClassVar["Role"] = "worker"

    def __init__(self, caller: Caller, payloads: Payloads | None = None) -> None:
        super().__init__(caller)
        self._payloads = payloads or Payloads()
        self._sent = SentProgress(self._payloads.inline_max_bytes)

    def lease(self, worker: str, version: Version, count: int) -> Lease:
        """Leases up to `count` tasks; tasks that came back are served first. `version`: the weights this worker serves.

        A partial rollout that fails the checks is dropped and counted, and its task starts from scratch.
        """
        reply = self._caller.call("lease", worker, *version, count, uuid.uuid4().hex)
        lease, kept = replies.lease_of(reply), replies.kept_of(reply)
        partials, bad = self._payloads.partials_of(kept)
        self.discard(worker, bad)
        for task in lease.tasks:
            self._sent.note_leased(worker, task.id, kept.get(task.id), partials.get(task.id))
        return replace(lease, partials=partials)

    def learner_beat(self) -> bytes:
        """Returns the time of the learner's last sign of life, as a word that is to be compared and not read."""
        client, key = self._caller.client, self._caller.keys.state
        beat: bytes | None = self._caller.persist("learner_beat", lambda: client.hget(key, "swept_ms"))
        return beat or b""

    def renew(self, worker: str, held: Mapping[str, int]) -> list[str]:
        """Renews leases; returns the ids no longer held. `held`: task id → the version of its oldest token."""
        words = [word for task in held.items() for word in task]
        lost = self._caller.call("renew", worker, *words) if held else []
        self._sent.keep_only(worker, held)
        return [replies.text(task_id) for task_id in lost]

    def progress(self, worker: str, partials: Sequence[PartialGroup]) -> list[str]:
        """Stores what is new in partial rollouts since the last call, for the worker that leases the tasks next.

        Returns the ids that `worker` no longer holds, for which nothing was stored. A full server stores nothing
        either; that only costs tokens, and its tasks are not among the ids returned. Raises `CodecError` for a value
        that is not a partial rollout, or that is larger than `queue.group_max_bytes`.
        """
        news = [step for one in partials if (step := self._sent.news(worker, one)) is not None]
        answered = dict(self._store_progress(worker, news))
        wholes = [self._sent.whole(one) for one in partials if answered.get(one.task) == Stored.gap]
        answered |= self._store_progress(worker, wholes)
        return [task for task, stored in answered.items() if stored == Stored.lost]

    def _store_progress(self, worker: str, steps: Sequence[Step]) -> Iterator[tuple[str, Any]]:
        """Makes these calls; yields task id and answer of each, and notes what the queue has taken."""
        sendings = [step.stored_as(*self._payloads.keep_segment(step.segment)) for step in steps]
        calls = divided(sendings, lambda sending: _payload_bytes(sending.words), PROGRESS_BYTES)
        words = [("progress", worker, *(word for one in call for word in one.words)) for call in calls]
        about = worker, [sending.sent for sending in sendings]
        answered = self._caller.move("progress", words, about, optional=True) if calls else []
        for call, answer in zip(calls, answered, strict=True):
            for (_, sent), stored in zip(call, repeat(None) if isinstance(answer, Exception) else answer, strict=False):
                if stored == Stored.taken:
                    self._sent.note(worker, sent)
                yield sent.partials.task, stored

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
        shared = divided(kept, _payload_bytes, CALL_BYTES)
        calls = [("complete", worker, *chain.from_iterable(words)) for words in shared]
        answered = self._caller.move("complete", calls, (worker, groups)) if calls else []
        outcomes = [Outcome(replies.text(outcome)) for outcome in chain.from_iterable(answered)]
        refused = [
            payload for outcome, (*_, kind, payload) in zip(outcomes, kept, strict=True)
            if kind == "ref" and outcome is not Outcome.accepted
        ]  # fmt: skip
        self._payloads.discard(refused)
        return outcomes

    def heartbeat(self, worker: str, heartbeat: Heartbeat, every_s: float = 1.0) -> WorkerOrder | None:
        """Records a heartbeat. It expires once `BEATS_MISSED` of them, `every_s` apart, are missing.

        Returns what the fleet's controller has ordered this worker to do, if anything.
        """
        expire_ms = round(1000 * BEATS_MISSED * every_s)
        return replies.order_of(self._caller.call("heartbeat", worker, expire_ms, *replies.heartbeat_words(heartbeat)))

    def leave(self, worker: str, why: Departure = "stopped") -> None:
        """Removes `worker`, which ends, from the list, and counts why.

        Tasks that it holds stay leased until their leases run out.
        """
        self._caller.call("leave", worker, why)


def _payload_bytes(words: Sequence[Any]) -> int:
    """Returns the size of a call's payload, which is its last word."""
    return len(words[-1])
