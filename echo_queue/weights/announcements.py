"""Announces the stored parts of a growing route: each part once, in order, and only if the route has more than one.

Uploads end in any order, in threads of their own. A route of a single part is not announced: its manifest follows at
once.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future

from echo_queue.weights.manifest import Announcement, Part

Announce = Callable[[Announcement, bytes], object]
"""Announces a part to the workers by its signed document; returns at once."""


class OrderedAnnouncements:
    """Announces the parts of one route in order.

    `announce` is called with a part's place and the part, in the thread of an upload or in that of `follow`'s caller.
    """

    def __init__(self, announce: Callable[[int, Part], object]) -> None:
        self._announce = announce
        self._parts: list[Part] = []
        self._stored: set[int] = set()
        self._announced = 0
        self._lock = threading.Lock()

    def follow(self, part: Part, upload: "Future[None]") -> None:
        """Adds the route's next part, which is stored once `upload` has ended without an error."""
        with self._lock:
            place = len(self._parts)
            self._parts.append(part)
            self._announce_stored()
        upload.add_done_callback(lambda ended: self._end(place, ended))

    def _end(self, place: int, upload: "Future[None]") -> None:
        """Upload thread: marks the part as stored, unless its upload failed."""
        if upload.exception() is None:
            with self._lock:
                self._stored.add(place)
                self._announce_stored()

    def _announce_stored(self) -> None:
        """Announces the next parts up to the first that is not stored yet. The caller holds the lock."""
        while len(self._parts) > 1 and self._announced in self._stored:
            self._announce(self._announced, self._parts[self._announced])
            self._announced += 1
