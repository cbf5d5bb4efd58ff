"""Answers scrapes of a run's figures, each within a deadline.

- Redis is asked by one thread at a time, however many ask for the figures: who comes meanwhile gets the same answer.
- A scrape that Redis does not answer in time says `echo_queue_up 0`. The thread that waits for Redis is left behind,
  and no other one is started until it is through.
"""

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotInTime
from typing import NamedTuple

from echo_queue.cli.inspect.live.watcher import NOT_BEGUN
from echo_queue.errors import EchoQueueError
from echo_queue.queue import Caller
from echo_queue.reporting.figures import exposition
from echo_queue.reporting.figures.figure import Reading
from echo_queue.reporting.figures.reading import RunReader

DEADLINE_S = 5.0
"""Half of the time that Prometheus waits for a scrape."""
LOG = logging.getLogger(__name__)


class Scrape(NamedTuple):
    """The answer to a scrape. `trouble`: why Redis has not answered; empty if it has."""

    text: bytes
    trouble: str = ""


class Scrapes:
    """The scrapes of run `run`. `connect` returns a connection as the read-only user, or raises `EchoQueueError`."""

    def __init__(self, run: str, connect: Callable[[], Caller], deadline_s: float = DEADLINE_S) -> None:
        self._run, self._connect, self._deadline_s = run, connect, deadline_s
        self._reader: RunReader | None = None
        self._lock = threading.Lock()
        self._asked: Future[Reading | None] | None = None
        self._trouble = ""

    def scrape(self) -> Scrape:
        """Returns the figures as Redis has them now, or that it did not answer."""
        try:
            reading = self._begun().result(timeout=self._deadline_s)
        except NotInTime:
            return self._away(f"no answer within {self._deadline_s:g} s")
        except EchoQueueError as error:
            return self._away(f"{error.problems[0].where}: {error.problems[0].what}")
        self._trouble = ""
        return Scrape(exposition.text(self._run, reading))

    def _away(self, trouble: str) -> Scrape:
        if trouble != self._trouble:
            LOG.warning("run %s: %s", self._run, trouble)
        self._trouble = trouble
        return Scrape(exposition.text(self._run, None, up=False), trouble)

    def _begun(self) -> "Future[Reading | None]":
        """Returns the answer that is under way; begins one if there is none."""
        with self._lock:
            if self._asked is None or self._asked.done():
                self._asked = Future()
                threading.Thread(target=self._ask, args=(self._asked,), name="scrape", daemon=True).start()
            return self._asked

    def _ask(self, asked: "Future[Reading | None]") -> None:
        try:
            asked.set_result(self._read())
        except BaseException as error:
            self._reader = None  # an embedded Redis that starts again has another port
            asked.set_exception(error)

    def _read(self) -> Reading | None:
        """Returns what Redis says; None for a run that nobody has begun."""
        if self._reader is None:
            self._reader = RunReader(self._connect())
        try:
            return self._reader.read()
        except EchoQueueError as error:
            if NOT_BEGUN in str(error):
                return None
            raise
