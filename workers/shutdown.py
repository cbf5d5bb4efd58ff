"""A worker that must go: on a signal, or because its machine is taken away (`workers.preemption`).

- The main thread leaves by itself, at once: it stores how far its samples are, hands its tasks back, and exits with 0.
- Where it cannot (an environment hangs, a server is away), the `ShutdownThread` hands the tasks back and ends the
  process with 0 within the time there is; should that fail as well, the leases expire by themselves.
"""

import logging
import os
import signal
import threading
from collections.abc import Callable, Mapping
from functools import partial
from queue import SimpleQueue

from echo_queue.queue import WorkerQueue
from workers.held_leases import HeldLeases

log = logging.getLogger(__name__)

ASIDE_SHARE = 0.2
"""The share of the time there is that is kept for handing back from aside."""
LEAST_S = 2.0
"""Taken for what is left after a notice that came late: nobody knows at which instant the machine goes."""


class Shutdown(threading.Event):
    """Set once the worker must leave. Any thread may ask for that, and read why."""

    def __init__(self) -> None:
        super().__init__()
        self.why = ""
        self.within_s: float | None = None
        """Seconds that the machine lives on after the notice; None: nobody said."""
        self._resting = threading.Event()
        self._asked = threading.Lock()

    @property
    def resting(self) -> bool:
        """It leases nothing more, goes on with what is running, and leaves after that."""
        return self._resting.is_set()

    def time_s(self, grace_s: float) -> float:
        """Seconds there are for leaving, from the notice on; `grace_s` where nobody said."""
        return grace_s if self.within_s is None else max(self.within_s, LEAST_S)

    def leave(self, why: str, within_s: float | None = None) -> None:
        """The first to ask says why and how soon."""
        with self._asked:
            if self.is_set():
                return
            self.why, self.within_s = why, within_s
            self.set()
        log.info("leaving: %s", why)

    def rest(self, why: str) -> None:
        """The machine may soon be taken away."""
        with self._asked:
            if self.resting:
                return
            self._resting.set()
        log.info("leasing nothing more: %s", why)


def on_signals(leaving: Shutdown) -> None:
    """SIGTERM and SIGINT make the worker leave. Call it in the main thread."""
    hear({number: partial(leaving.leave, number.name) for number in (signal.SIGTERM, signal.SIGINT)})


def hear(acts: Mapping[signal.Signals, Callable[[], object]]) -> None:
    """Does the act of each signal that comes, in a thread. Call it in the main thread.

    A handler runs between any two instructions of the main thread, also while that holds a lock which the act needs.
    """
    heard: SimpleQueue[int] = SimpleQueue()  # `put` may interrupt itself
    for number in acts:
        signal.signal(number, lambda number, _: heard.put(number))
    threading.Thread(target=_act, args=(heard, acts), name="signals", daemon=True).start()


def _act(heard: "SimpleQueue[int]", acts: Mapping[signal.Signals, Callable[[], object]]) -> None:
    while True:
        acts[signal.Signals(heard.get())]()


class ShutdownThread(threading.Thread):
    """The safety net of a main thread that is stuck while the worker must leave.

    `retire`: what else is to be done as soon as the worker leaves.
    """

    def __init__(
        self,
        queue: WorkerQueue,
        worker: str,
        leaving: Shutdown,
        grace_s: float,
        *,
        held: HeldLeases,
        retire: Callable[[], object],
    ) -> None:
        super().__init__(name="leaver", daemon=True)
        self._queue = queue
        self._worker = worker
        self._leaving = leaving
        self._grace_s = grace_s
        self._held = held
        self._retire = retire
        self._left = threading.Event()

    def run(self) -> None:
        self._leaving.wait()
        threading.Thread(target=self._retire, daemon=True).start()  # it may wait for a server that is away
        given_s = self._leaving.time_s(self._grace_s)
        if self._left.wait((1 - ASIDE_SHARE) * given_s):
            return
        log.warning("still busy: handing back from aside and ending")
        handing_back = threading.Thread(target=self._hand_back, daemon=True)
        handing_back.start()
        handing_back.join(timeout=ASIDE_SHARE * given_s / 2)
        os._exit(0)

    def left(self) -> None:
        """The main thread has come to its end by itself."""
        self._left.set()

    def _hand_back(self) -> None:
        self._held.hand_back(partial(self._queue.release, self._worker))
        self._queue.leave(self._worker)
