"""Sends lost chunks again. Celery on Redis loses messages when its worker is killed; the set's entry in Redis remains.

A chunk is presumed lost if two snapshots in a row show it waiting, and both show no message that waits for a worker. A
chunk that is merely slow is then sent twice, which changes nothing.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from celery import Celery

from echo_queue.config import Config
from echo_queue.queue import SubmitterQueue
from echo_queue.submission.celery.messages import messages_waiting, send

Key = tuple[str, int]


@dataclass(frozen=True)
class BrokerSnapshot:
    """The chunks (set, number) without a shard, and the number of messages that no worker has taken yet."""

    waiting: frozenset[Key]
    messages: int


def presumed_lost(before: BrokerSnapshot | None, now: BrokerSnapshot) -> frozenset[Key]:
    """Returns the chunks that two snapshots in a row show as lost."""
    if before is None or before.messages or now.messages:
        return frozenset()
    return before.waiting & now.waiting


class Reconciler:
    """Compares each snapshot of the broker with the one before."""

    def __init__(self, config: Config, queue: SubmitterQueue, app: Celery) -> None:
        self._held_out = [evaluation.name for evaluation in config.evaluation]
        self._queue = queue
        self._app = app
        self._before: BrokerSnapshot | None = None

    def reconcile(self) -> int:
        """Sends the lost chunks of all sets again, and returns their number. Raises `ServiceError`."""
        statuses = [status for name in self._unarrived() if (status := self._queue.submission_status(name))]
        waiting = frozenset((status.name, chunk.number) for status in statuses for chunk in status.waiting)
        now = BrokerSnapshot(waiting, messages_waiting(self._app) if waiting else 0)
        lost = presumed_lost(self._before, now)
        self._before = now
        for status in statuses:
            again = [chunk for chunk in status.waiting if (status.name, chunk.number) in lost]
            send(self._app, status.name, status.source, again)
        return len(lost)

    def _unarrived(self) -> Iterator[str]:
        """Yields the names of all sets that may have chunks without a shard. The backlog has none that is held out."""
        yield from self._queue.unserved_sets()
        for name in self._held_out:
            counts = self._queue.submission_counts(name)
            if counts is not None and not counts.settled:
                yield name
