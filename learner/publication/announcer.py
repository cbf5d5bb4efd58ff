"""Tells the workers of parts that are stored while their version is still being published.

- Whoever publishes is never held up: announcements wait here, and a thread makes them one after another.
- They are hints. One that Redis does not take in time is the last of its route, as parts are announced in order; the
  workers then fetch the rest once the version stands.
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
    """`queue`: whose calls end within `DEADLINE_S` or so; nobody else should wait for it."""

    def __init__(self, queue: LearnerQueue) -> None:
        super().__init__(name="announcer", daemon=True)
        self._queue = queue
        self._waiting: SimpleQueue[tuple[Announcement, bytes] | None] = SimpleQueue()
        self._given_up = ""
        """A route."""

    def announce(self, announcement: Announcement, document: bytes) -> None:
        """Returns at once."""
        self._waiting.put((announcement, document))

    def close(self) -> None:
        """Nothing more is announced; a call that is under way ends by itself."""
        self._waiting.put(None)

    def run(self) -> None:
        while (waiting := self._waiting.get()) is not None:
            announcement, document = waiting
            if announcement.route != self._given_up:
                self._make(announcement, document)

    def _make(self, announcement: Announcement, document: bytes) -> None:
        version, route = announcement.version, announcement.route
        try:
            taken = self._queue.announce(version, route, announcement.place, document)
        except EchoQueueError as error:
            log.info("%s is not announced any further: %s", route, error)
            taken = False
        if not taken:
            self._given_up = route
