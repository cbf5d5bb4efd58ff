"""Asks a source of notices again and again, and tells the worker."""

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
    """The machine is taken away in `within_s` seconds (None: nobody knows)."""

    why: str
    within_s: float | None = None


@dataclass(frozen=True)
class Warned:
    """The machine may soon be taken away."""

    why: str


class Away(Exception):
    """The source cannot be asked, or answers what is not its protocol; it may be back later."""


class Source(Protocol):
    def look(self) -> Notice | Warned | None:
        """What is so now. It may wait for a change, a minute at most. Raises `Away`."""


class Watcher(threading.Thread):
    """Looks until the worker leaves. Of a source that is away one line is logged, however often."""

    def __init__(self, source: Source, leaving: Shutdown, poll_s: float) -> None:
        super().__init__(name="preemption", daemon=True)
        self._source = source
        self._leaving = leaving
        self._poll_s = poll_s
        self._complained = False

    def run(self) -> None:
        while not self._leaving.is_set():
            try:
                self._tell(self._source.look())
            except Away as error:
                self._complain(error)
            self._leaving.wait(self._poll_s)

    def _tell(self, seen: Notice | Warned | None) -> None:
        match seen:
            case Notice(why, within_s):
                self._leaving.leave(why, within_s)
            case Warned(why):
                self._leaving.rest(why)

    def _complain(self, error: Away) -> None:
        if not self._complained:
            log.warning("no spot notice would be seen, and it is tried again without a word: %s", error)
        self._complained = True


def seconds_until(moment: datetime, at_most: float) -> float:
    """From now on, by this machine's clock, of which nobody knows how right it is: hence the bounds, 0 and `at_most`.

    `moment` has a time zone.
    """
    return min(max(moment.timestamp() - time.time(), 0.0), at_most)
