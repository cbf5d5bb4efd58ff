"""SIGTERM or SIGINT: a worker finishes its call or hands its tasks back, within the grace time, and exits with 0.

Where the main thread cannot (it is stuck in an environment, or waits for a server that is away), a thread hands
the tasks back and ends the process; should that fail as well, the leases expire by themselves.
"""

import logging
import os
import signal
import threading
from collections.abc import Callable
from types import FrameType

from echo_queue.queue import Queue
from workers.heart import Heart

log = logging.getLogger(__name__)

FINISH_SHARE, STOP_SHARE = 0.6, 0.2
"""Shares of the grace time: to finish the call, then to stop it and hand back; the rest is for the thread."""


def on_signals(leaving: threading.Event) -> None:
    def leave(number: int, frame: FrameType | None) -> None:
        leaving.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, leave)


class Leaver(threading.Thread):
    """`retire`: what else is to be done as soon as this worker leaves."""

    def __init__(
        self,
        queue: Queue,
        worker: str,
        heart: Heart,
        leaving: threading.Event,
        grace_s: float,
        *,
        retire: Callable[[], object],
    ) -> None:
        super().__init__(name="leaver", daemon=True)
        self._queue = queue
        self._worker = worker
        self._heart = heart
        self._leaving = leaving
        self._grace_s = grace_s
        self._retire = retire
        self._left = threading.Event()

    def run(self) -> None:
        self._leaving.wait()
        self._heart.state = "leaving"
        threading.Thread(target=self._retire, daemon=True).start()  # it may wait for a server that is away
        if self._left.wait(FINISH_SHARE * self._grace_s):
            return
        log.info("cannot finish this call in time, stopping it")
        self._heart.call.stop.set()
        if self._left.wait(STOP_SHARE * self._grace_s):
            return
        log.warning("still busy: handing back from aside and ending")
        handing_back = threading.Thread(target=self._hand_back, daemon=True)
        handing_back.start()
        handing_back.join(timeout=(1 - FINISH_SHARE - STOP_SHARE) * self._grace_s / 2)
        os._exit(0)

    def left(self) -> None:
        """The main thread has come to its end by itself."""
        self._left.set()

    def _hand_back(self) -> None:
        self._queue.release(self._worker, self._heart.call.held)
