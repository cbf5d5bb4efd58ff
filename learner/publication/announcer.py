"""Announces the parts that are stored while their version is still being published.

- Announcing never holds up the publication: announcements wait here, and a thread sends them one after another.
- Announcements are hints. Parts are announced in order, so one that Redis does not take in time is the last of its
  route; workers then fetch the remaining parts once the version is published.
"""

import logging
import threading
from queue import SimpleQueue

from echo_queue.errors import EchoQueueError
from echo_queue.queue import LearnerQueue
from echo_queue.weights import Announcement

log = logging.getLogger(__name__)

DEADLINE_S = 5.0


class Announcer(threading.Thread):
    """Sends announcements one after another.

    `queue`: its calls should end within about `DEADLINE_S`; only this thread should use it.
    """

    def __init__(self, queue: LearnerQueue) -> None:
        super().__init__(name="announcer", daemon=True)
        self._queue = queue
        self._waiting: SimpleQueue[tuple[Announcement, bytes] | None] = SimpleQueue()
        self._refused_route = ""

    def announce(self, announcement: Announcement, document: bytes) -> None:
        """Queues a part's announcement and returns at once. Any thread may call it."""
        self._waiting.put((announcement, document))

    def close(self) -> None:
        """Ends the thread once it has sent what waits, without waiting for that."""
        self._waiting.put(None)

    def run(self) -> None:
        while (waiting := self._waiting.get()) is not None:
            announcement, document = waiting
            if announcement.route != self._refused_route:
                self._send(announcement, document)

    def _send(self, announcement: Announcement, document: bytes) -> None:
        version, route = announcement.version, announcement.route
        try:
            taken = self._queue.announce(version, route, announcement.place, document)
        except EchoQueueError as error:
            log.info("%s is not announced any further: %s", route, error)
            taken = False
        if not taken:
            self._refused_route = route
