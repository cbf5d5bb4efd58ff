"""The thread that polls a source of notices and passes them on to the worker."""

import logging
import threading
import time
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from workers.shutdown import Shutdown

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Notice:
    """The machine will be taken away in `within_s` seconds (None: unknown)."""

    why: str
    within_s: float | None = None


@dataclass(frozen=True)
class Recommendation:
    """The machine may soon be taken away."""

    why: str


class NoticeSourceAway(Exception):
    """The source does not answer, or its answer is malformed; it may answer later."""


class NoticeSource(Protocol):
    def poll(self) -> Notice | Recommendation | None:
        """Returns the present notice, if any. It may wait for a change, a minute at most. Raises `NoticeSourceAway`."""


class NoticeWatcher(threading.Thread):
    """Polls until the worker leaves. A source that is away is logged once, however often it is away."""

    def __init__(self, source: NoticeSource, shutdown: Shutdown, poll_s: float) -> None:
        super().__init__(name="preemption", daemon=True)
        self._source = source
        self._shutdown = shutdown
        self._poll_s = poll_s
        self._warned = False

    def run(self) -> None:
        while not self._shutdown.is_set():
            try:
                self._pass_on(self._source.poll())
            except NoticeSourceAway as error:
                self._warn_once(error)
            self._shutdown.wait(self._poll_s)

    def _pass_on(self, notice: Notice | Recommendation | None) -> None:
        match notice:
            case Notice(why, within_s):
                self._shutdown.leave(why, within_s)
            case Recommendation(why):
                self._shutdown.rest(why)

    def _warn_once(self, error: NoticeSourceAway) -> None:
        if not self._warned:
            log.warning(
                "spot notices cannot be received; their source is polled again without further warnings: %s", error
            )
        self._warned = True


def seconds_until(moment: datetime, at_most: float) -> float:
    """Returns the seconds from now until `moment`, which has a time zone, between 0 and `at_most`.

    The bounds are there because this machine's clock may be wrong.
    """
    return min(max(moment.timestamp() - time.time(), 0.0), at_most)
