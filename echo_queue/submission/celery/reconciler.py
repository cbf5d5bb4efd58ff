"""Sends lost chunks again. Celery on Redis loses messages when its worker is killed; the ledger does not.

A chunk is presumed lost if it was waiting at two looks in a row and at both nothing waited in the broker
for a worker. A chunk that is merely slow is then sent twice, which changes nothing.
"""

from dataclasses import dataclass

from celery import Celery

from echo_queue.queue import SubmitterQueue
from echo_queue.submission.celery.messages import messages_waiting, send

Key = tuple[str, int]


@dataclass(frozen=True)
class BrokerSnapshot:
    """Chunks (set, number) without a shard, and the messages that no worker has taken yet."""

    waiting: frozenset[Key]
    messages: int


def presumed_lost(before: BrokerSnapshot | None, now: BrokerSnapshot) -> frozenset[Key]:
    if before is None or before.messages or now.messages:
        return frozenset()
    return before.waiting & now.waiting


class Reconciler:
    """Remembers the last look."""

    def __init__(self, queue: SubmitterQueue, app: Celery) -> None:
        self._queue = queue
        self._app = app
        self._before: BrokerSnapshot | None = None

    def look(self) -> int:
        """Sends lost chunks of all sets again; how many. Raises `ServiceError`."""
        statuses = [
            submission_status
            for name in self._queue.unserved_sets()
            if (submission_status := self._queue.submission_status(name))
        ]
        waiting = {
            (submission_status.name, chunk.number): (submission_status, chunk)
            for submission_status in statuses
            for chunk in submission_status.waiting
        }
        now = BrokerSnapshot(frozenset(waiting), messages_waiting(self._app) if waiting else 0)
        lost = presumed_lost(self._before, now)
        self._before = now
        for submission_status in statuses:
            again = [chunk for chunk in submission_status.waiting if (submission_status.name, chunk.number) in lost]
            send(self._app, submission_status.name, submission_status.source, again)
        return len(lost)
