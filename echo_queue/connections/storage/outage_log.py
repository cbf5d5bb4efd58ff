"""Says in a role's log that a server fails while the role tries again, and when it works again."""

import logging
import threading
import time
from collections.abc import Callable
from functools import cache

SAID_S = 5.0
"""An outage is told after this time: a restart takes less."""
FORGOTTEN_S = 60.0
"""A failure that comes so long after the last one belongs to another outage: those who met that one gave up."""

log = logging.getLogger(__name__)


class OutageLog:
    """The outages of one server, whichever threads meet them: each is told once, and its end as well."""

    def __init__(self, server: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._server = server
        self._clock = clock
        self._lock = threading.Lock()
        self._began: float | None = None
        self._answered_at = self._last = -FORGOTTEN_S
        self._told = False

    def failed(self, why: str, began: float, left_s: float) -> None:
        """Notes a try that failed, of a request that began at `began` and is tried again, for `left_s` at most.

        While the server answers others, it is one request that fails, and no outage.
        """
        with self._lock:
            now, began = self._clock(), max(began, self._answered_at)
            if self._began is None or now - self._last > FORGOTTEN_S:
                self._began, self._told = began, False
            self._began, self._last = min(self._began, began), now
            lasts_s = now - self._began
            tell, self._told = not self._told and lasts_s >= SAID_S, self._told or lasts_s >= SAID_S
        if tell:
            log.warning(
                "%s has failed for %.0f s and is tried again, for %.0f s at most: %s",
                *(self._server, lasts_s, left_s, why),
            )

    def answered(self) -> None:
        """Notes an answer, which may be a refusal."""
        self._answered_at = self._clock()
        if self._began is None:
            return
        with self._lock:
            began, told = self._began, self._told
            self._began, self._told = None, False
        if told and began is not None:
            log.warning("%s works again after %.0f s", self._server, self._clock() - began)


@cache
def outage_log(server: str) -> OutageLog:
    """Returns the log of this server's outages that all clients of a process share."""
    return OutageLog(server)
