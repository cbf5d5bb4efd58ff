"""The thread that ends leases which have run out, and by that shows that a learner lives.

- It sweeps from `begin` on, while the learner loads its model and its checkpoint; then the housekeeper takes over, a
  sweeper that does more. Each sweep is the sign of life by which workers, the fleet's controller and people go.
- It says nothing of progress. A learner that hangs while it loads is heard, and those who wait for it give it up, four
  times later, because nothing moves (`rollout.idle_deadline_s`, `controller.stall_s`).
- An outage is logged once and waited out: only the learner decides to end the run.
"""

import logging
import random
import threading

from echo_queue.checked_thread import CheckedThread
from echo_queue.errors import EchoQueueError
from echo_queue.queue import Caller, Operator
from echo_queue.queue.counts import counted
from echo_queue.queue.operator import SWEEP_MAX
from echo_queue.queue.rhythm import sweep_pause_s

log = logging.getLogger(__name__)

CLOSE_S = 5.0


class LeaseSweeper(CheckedThread):
    """Sweeps a run until it is closed. The learner's main thread calls `check`: without it no lease would ever end."""

    def __init__(self, caller: Caller, lease_s: float, name: str = "lease sweeper") -> None:
        super().__init__(name)
        self._operator = Operator(caller)
        self._pause_s = sweep_pause_s(lease_s)
        self._closed = threading.Event()

    def work(self) -> None:
        trouble = ""
        while not self._closed.wait(self._pause_s * random.uniform(0.75, 1.25)):
            try:
                self._sweep()
                trouble = ""
            except EchoQueueError as error:
                if str(error) != trouble:
                    log.warning("housekeeping: %s", error)
                trouble = str(error)

    def close(self) -> None:
        """Ends the thread, if it was started; a sweep that waits for Redis longer than `CLOSE_S` is left behind."""
        self._closed.set()
        if self.is_alive():
            self.join(CLOSE_S)

    def _sweep(self) -> None:
        """Ends all leases that have run out, in steps between which Redis serves others."""
        expired = dead = 0
        while not self._closed.is_set():
            swept = self._operator.reclaim()
            expired, dead = expired + swept.expired, dead + swept.dead
            if swept.leases < SWEEP_MAX:
                break
        if expired or dead:
            log.warning("%s expired, %s died", counted(expired, "lease"), counted(dead, "task"))
