"""The learner's housekeeper: a thread that expires leases, admits tasks, observes the workers and removes objects that
nothing points to.

It runs while the learner computes and has a connection of its own.
"""

import logging
import time
from collections.abc import Callable

from echo_queue.connections.storage.object_store import ObjectStore
from echo_queue.errors import ServiceError
from echo_queue.queue import Caller, Status
from echo_queue.queue.orphans import Sweeper
from echo_queue.queue.payloads import PARTIALS
from learner.lease_sweeper import LeaseSweeper

log = logging.getLogger(__name__)

ORPHANS_EVERY_S = 600.0
REMOVE_DEADLINE_S, REMOVE_AGAIN_S = 5.0, 60.0
"""The longest wait for the store while it removes partial rollouts, since leases end meanwhile; the pause after it."""


class Housekeeper(LeaseSweeper):
    """Sweeps a run until it is closed. `observe` is called with the queue's status after each sweep, in this thread."""

    def __init__(self, caller: Caller, store: ObjectStore, lease_s: float, observe: Callable[[Status], None]) -> None:
        super().__init__(caller, lease_s, name="housekeeper")
        self._store = store
        self._sweeper = Sweeper(caller, store)
        self._remove_due = 0.0
        self._orphans_due = time.monotonic() + ORPHANS_EVERY_S
        self._observe = observe

    def remove_partials(self) -> None:
        """Ends the thread, and removes the stored partial rollouts of all tasks that are not under way any more."""
        self.close()
        try:
            if keys := [stored.key for stored in self._store.list(PARTIALS)]:
                self._sweeper.remove_idle_partials(keys)
        except ServiceError as error:
            log.warning("stored partial rollouts are left behind: %s", error)

    def _sweep(self) -> None:
        super()._sweep()
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
