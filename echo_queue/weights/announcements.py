"""Says which parts of a growing route are stored: each once, in order, and only where there is more than one.

Uploads end in any order, in threads of their own. A route of a single part is not worth a word: its manifest follows.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future

from echo_queue.weights.manifest import Announcement, Part

Announce = Callable[[Announcement, bytes], object]
"""Lets workers know of a part, by its signed document; returns at once."""


class InOrder:
    """The parts of one route. `tell` is called with a part and its place, in the thread of an upload or of `follow`."""

    def __init__(self, tell: Callable[[int, Part], object]) -> None:
        self._tell = tell
        self._parts: list[Part] = []
        self._stored: set[int] = set()
        self._told = 0
        self._lock = threading.Lock()

    def follow(self, part: Part, upload: "Future[None]") -> None:
        """The route's next part, which is stored once `upload` has ended well."""
        with self._lock:
            place = len(self._parts)
            self._parts.append(part)
            self._go_on()
        upload.add_done_callback(lambda ended: self._end(place, ended))

    def _end(self, place: int, upload: "Future[None]") -> None:
        if upload.exception() is None:
            with self._lock:
                self._stored.add(place)
                self._go_on()

    def _go_on(self) -> None:
        while len(self._parts) > 1 and self._told in self._stored:
            self._tell(self._told, self._parts[self._told])
            self._told += 1
