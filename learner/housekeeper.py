"""The learner's housekeeper: a thread that expires leases, admits tasks, observes the workers and removes objects that
nothing points to.

It runs while the learner computes and has a connection of its own. An outage is logged once and waited out: only the
learner decides to end the run.
"""

import logging
import random
import threading
import time
from collections.abc import Callable

from echo_queue.connections.storage.object_store import ObjectStore
from echo_queue.errors import EchoQueueError, ServiceError
from echo_queue.queue import Caller, Operator, Status
from echo_queue.queue.counts import counted
from echo_queue.queue.operator import SWEEP_MAX
from echo_queue.queue.orphans import Sweeper
from echo_queue.queue.payloads import PARTIALS

log = logging.getLogger(__name__)

SWEEPS_PER_LEASE = 8
"""Twice as often as leases need: time passes for them by at most a quarter of a lease from sweep to sweep."""
LONGEST_PAUSE_S = 1.0
ORPHANS_EVERY_S = 600.0
REMOVE_DEADLINE_S, REMOVE_AGAIN_S = 5.0, 60.0
"""The longest wait for the store while it removes partial rollouts, since leases end meanwhile; the pause after it."""
CLOSE_S = 5.0


class Housekeeper(threading.Thread):
    """Sweeps a run until it is closed. `observe` is called with the queue's status after each sweep, in this thread.

    The learner's main thread calls `check`.
    """

    def __init__(self, caller: Caller, store: ObjectStore, lease_s: float, observe: Callable[[Status], None]) -> None:
        super().__init__(name="housekeeper", daemon=True)
        self._operator = Operator(caller)
        self._store = store
        self._sweeper = Sweeper(caller, store)
        self._remove_due = 0.0
        self._orphans_due = time.monotonic() + ORPHANS_EVERY_S
        self._pause_s = min(lease_s / SWEEPS_PER_LEASE, LONGEST_PAUSE_S)
        self._observe = observe
        self._closed = threading.Event()
        self._failure: Exception | None = None

    def run(self) -> None:
        trouble = ""
        while not self._closed.wait(self._pause_s * random.uniform(0.75, 1.25)):
            try:
                self._sweep()
                trouble = ""
            except EchoQueueError as error:
                if str(error) != trouble:
                    log.warning("housekeeping: %s", error)
                trouble = str(error)
            except Exception as error:
                self._failure = error
                return

    def check(self) -> None:
        """Raises the error that ended the thread, if any: without it no lease would ever end."""
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        """Ends the thread; a sweep that waits for Redis longer than `CLOSE_S` is left behind."""
        self._closed.set()
        self.join(CLOSE_S)

    def remove_partials(self) -> None:
        """Ends the thread, and removes the stored partial rollouts of all tasks that are not under way any more."""
        self.close()
        try:
            if keys := [stored.key for stored in self._store.list(PARTIALS)]:
                self._sweeper.remove_idle_partials(keys)
        except ServiceError as error:
            log.warning("stored partial rollouts are left behind: %s", error)

    def _sweep(self) -> None:
        self._reclaim()
        self._operator.admit(optional=True)  # leases end even while the server is full
        self._observe(self._operator.status())
        if time.monotonic() > self._orphans_due:
            self._sweeper.sweep()
            self._orphans_due = time.monotonic() + ORPHANS_EVERY_S
        if time.monotonic() > self._remove_due:
            self._remove_unwanted()

    def _remove_unwanted(self) -> None:
        """Removes the objects of partial rollouts that were dropped. A store that is away is left alone for a while."""
        self._remove_due = time.monotonic() + REMOVE_AGAIN_S
        removed: list[str] = []
        while (removed := self._operator.unwanted(removed)) and not self._closed.is_set():
            self._sweeper.remove_partials(removed, REMOVE_DEADLINE_S)
        self._remove_due = 0.0

    def _reclaim(self) -> None:
        """Ends all leases that have run out, in steps between which Redis serves others."""
        expired = dead = 0
        while not self._closed.is_set():
            swept = self._operator.reclaim()
            expired, dead = expired + swept.expired, dead + swept.dead
            if swept.leases < SWEEP_MAX:
                break
        if expired or dead:
            log.warning("%s expired, %s died", counted(expired, "lease"), counted(dead, "task"))
