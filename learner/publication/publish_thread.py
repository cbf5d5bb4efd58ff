"""Publishes weights while training goes on, and measures how long they take to arrive.

- A snapshot is copied before `hand_over` returns, so that the next update cannot change it.
- One version is under way at a time; the newest one handed over meanwhile waits, older ones are left out. The learner
  is never held up: what admission needs published, it waits for itself.
- A version is served once every living worker's heartbeat names it or a newer one; the time since the end of its
  update is T_bcast, as coarse as heartbeats are. Without workers it is the time that publishing took.
- A failure in the background surfaces at the next call.
"""

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

from torch import Tensor

from echo_queue.errors import DeadlineError, Problem
from echo_queue.queue import Status
from echo_queue.records import Version

log = logging.getLogger(__name__)

SMOOTHING = 0.3
"""Weight of the newest measurement of T_bcast."""
USUAL = 10.0
"""Times T_bcast: what takes longer than that is stuck."""
CLOSE_S = 30.0

Publish = Callable[[Version, Mapping[str, Tensor]], object]
Follow = Callable[[Version, Callable[[], bool]], object]


def publication_period(t_bcast_s: float, t_train_s: float, s: int) -> int:
    """κ = max(1, ⌈T_bcast / T_train⌉), the smallest that dissemination sustains; at most S + 1."""
    return min(max(1, math.ceil(t_bcast_s / max(t_train_s, 1e-6))), s + 1)


class Snapshot(NamedTuple):
    version: Version
    weights: Mapping[str, Tensor]
    updated: float
    """When its update ended."""


class Publisher(threading.Thread):
    """`publish` stores the weights of a version and moves the pointer to it; `deadline_s` is for one version.

    `follow` then does what can wait a little; it may ask whether something newer waits already.
    """

    def __init__(self, publish: Publish, follow: Follow, deadline_s: float) -> None:
        super().__init__(name="publisher", daemon=True)
        self.t_bcast_s = 0.0
        self._publish = publish
        self._follow = follow
        self._deadline_s = deadline_s
        self._changed = threading.Condition()
        self._waiting: Snapshot | None = None
        self._under_way: Snapshot | None = None
        self._arriving: Snapshot | None = None
        self._failure: BaseException | None = None
        self._closed = False

    def hand_over(self, version: Version, weights: Mapping[str, Tensor]) -> None:
        """Publishes a copy of `weights` in the background, as soon as nothing else is under way."""
        snapshot = Snapshot(version, {name: tensor.clone() for name, tensor in weights.items()}, time.monotonic())
        with self._changed:
            self.check()
            self._waiting = snapshot
            self._changed.notify_all()

    def wait(self) -> None:
        """Until all that was handed over is published. Raises `DeadlineError` naming the version that is not."""
        with self._changed:
            while self._failure is None and (snapshot := self._under_way or self._waiting):
                # A version may take long where versions do; the next one has a deadline of its own.
                deadline_s = max(self._deadline_s, USUAL * self.t_bcast_s)
                if not self._changed.wait_for(lambda was=snapshot: self._has_left(was), deadline_s):  # type: ignore[misc]
                    what = f"version {snapshot.version} was not published within {deadline_s:.0f} s"
                    fix = "see that the object store takes data; a restart publishes the newest version again"
                    raise DeadlineError(Problem("publisher", what, fix))
        self.check()

    def check(self) -> None:
        """Raises what went wrong in the background."""
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        """What is under way is finished if it takes no longer than usual, what waits is dropped."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self.join(max(CLOSE_S, USUAL * self.t_bcast_s))
        if self.is_alive():
            log.warning("a version is left half published; nothing points to it")

    def run(self) -> None:
        while snapshot := self._next():
            try:
                self._publish(snapshot.version, snapshot.weights)
                self._published(snapshot)
                self._settle()
                self._follow(snapshot.version, self._hurried)
            except BaseException as error:
                self._failure = error
                self._settle()

    def _settle(self) -> None:
        """Who waits for the version need not wait for what follows it."""
        with self._changed:
            self._under_way = None
            self._changed.notify_all()

    def _hurried(self) -> bool:
        return self._waiting is not None or self._closed

    def _has_left(self, snapshot: Snapshot) -> bool:
        return self._failure is not None or (self._under_way is not snapshot and self._waiting is not snapshot)

    def _next(self) -> Snapshot | None:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closed or self._failure)
            if self._closed or self._failure:
                return None
            self._under_way, self._waiting = self._waiting, None
            return self._under_way

    def observe(self, status: Status) -> None:
        """Looks whether the version on its way has arrived everywhere. May be called from any thread."""
        arriving = self._arriving
        serving = [worker.heartbeat.version for worker in status.workers if worker.heartbeat is not None]
        if arriving is not None and serving and min(serving) >= arriving.version:
            self._arriving = None
            self._measure(time.monotonic() - arriving.updated)

    def _published(self, snapshot: Snapshot) -> None:
        if self.t_bcast_s == 0.0:
            self._measure(time.monotonic() - snapshot.updated)
        if self._arriving is None:
            self._arriving = snapshot._replace(weights={})

    def _measure(self, seconds: float) -> None:
        self.t_bcast_s = seconds if self.t_bcast_s == 0.0 else (1 - SMOOTHING) * self.t_bcast_s + SMOOTHING * seconds
