"""The shutdown of a worker: on a signal, because its machine is taken away (`workers.preemption`), or on an order of
the fleet's controller.

- The main thread leaves by itself, at once: it stores its partial rollouts, hands its tasks back, and exits with 0.
- If the main thread is stuck (an environment hangs, a server is away), the `ShutdownThread` hands the tasks back and
  ends the process with 0 within the time that remains; if that fails as well, the leases expire by themselves.
"""

import logging
import os
import threading
from collections.abc import Callable
from functools import partial

from echo_queue.launch.signals import dispatch_signals, ending
from echo_queue.queue import WorkerOrder, WorkerQueue
from echo_queue.queue.types import Departure
from workers.held_leases import HeldLeases

log = logging.getLogger(__name__)

HAND_BACK_SHARE = 0.2
"""Share of the time for leaving that is reserved for the `ShutdownThread` to hand tasks back."""
LEAST_S = 2.0
"""Time assumed to remain after a late notice, since the instant at which the machine goes is unknown."""


class Shutdown(threading.Event):
    """The event that is set once the worker must leave. Any thread may set it, by `leave`, and read why it is set."""

    def __init__(self) -> None:
        super().__init__()
        self.why = ""
        self.departure: Departure = "finished"
        """The reason that the queue counts; a run may also finish before anything makes the worker leave."""
        self.within_s: float | None = None
        """Seconds that the machine lives on after the notice; None: unknown."""
        self._resting = threading.Event()
        self._lock = threading.Lock()

    @property
    def resting(self) -> bool:
        """True once the worker should lease nothing more, finish what is running, and then leave."""
        return self._resting.is_set()

    def time_s(self, grace_s: float) -> float:
        """Returns the seconds for leaving, counted from the notice; `grace_s` if the notice gave no time."""
        return grace_s if self.within_s is None else max(self.within_s, LEAST_S)

    def leave(self, why: str, within_s: float | None = None, departure: Departure = "stopped") -> None:
        """Makes the worker leave. The first call decides why and how soon; later calls change nothing."""
        with self._lock:
            if self.is_set():
                return
            self.why, self.within_s, self.departure = why, within_s, departure
            self.set()
        log.info("leaving: %s", why)

    def rest(self, why: str) -> None:
        """Makes the worker lease nothing more, because its machine may soon be taken away."""
        with self._lock:
            if self.resting:
                return
            self._resting.set()
        log.info("leasing nothing more: %s", why)

    def obey(self, order: WorkerOrder) -> None:
        """Rests or leaves, as the fleet's controller has ordered."""
        if order.word == "rest":
            self.rest("the fleet's controller needs this machine no longer")
        else:
            self.leave("the fleet's controller dismisses this machine", order.within_s or None, "dismissed")


def on_signals(shutdown: Shutdown) -> None:
    """Makes SIGTERM, SIGINT and SIGHUP end the worker by `shutdown.leave`. Call it in the main thread."""
    dispatch_signals({number: partial(shutdown.leave, number.name) for number in ending()})


class ShutdownThread(threading.Thread):
    """Hands the tasks back and ends the process if the main thread is stuck while the worker must leave.

    `retire` is called in a thread of its own as soon as the worker must leave.
    """

    def __init__(
        self,
        queue: WorkerQueue,
        worker: str,
        shutdown: Shutdown,
        grace_s: float,
        *,
        held: HeldLeases,
        retire: Callable[[], object],
    ) -> None:
        super().__init__(name="shutdown", daemon=True)
        self._queue = queue
        self._worker = worker
        self._shutdown = shutdown
        self._grace_s = grace_s
        self._held = held
        self._retire = retire
        self._left = threading.Event()

    def run(self) -> None:
        self._shutdown.wait()
        threading.Thread(target=self._retire, daemon=True).start()  # may wait for a server that is away
        given_s = self._shutdown.time_s(self._grace_s)
        if self._left.wait((1 - HAND_BACK_SHARE) * given_s):
            return
        log.warning("the main thread is still busy: handing the tasks back and ending the process")
        handing_back = threading.Thread(target=self._hand_back, daemon=True)
        handing_back.start()
        handing_back.join(timeout=HAND_BACK_SHARE * given_s / 2)
        os._exit(0)

    def left(self) -> None:
        """Main thread: says that it has ended by itself, so that this thread need not act."""
        self._left.set()

    def _hand_back(self) -> None:
        self._held.hand_back(partial(self._queue.release, self._worker))
        self._queue.leave(self._worker, self._shutdown.departure)
