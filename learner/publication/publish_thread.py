"""Publishes weights while training goes on, and measures how long they take to arrive.

- The weights that `hand_over` is given are a copy (`Policy.snapshot`), which no later update changes.
- One version is published at a time. Of the versions handed over meanwhile, the newest waits and older ones are left
  out. The learner is never held up: admission itself waits for the publications it needs.
- A version has arrived once every living worker's heartbeat names it or a newer one; the time since the end of its
  update is T_bcast, as coarse as heartbeats are. Without workers T_bcast is the time that publishing took.
- An error in the background is raised by the next call.
"""

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from echo_queue.errors import DeadlineError, Problem
from echo_queue.queue import Status
from echo_queue.records import Version
from learner.model.device import ready, side_stream

log = logging.getLogger(__name__)

SMOOTHING = 0.3
"""Weight of the newest measurement of T_bcast."""
STUCK_FACTOR = 10.0
"""A publication that takes longer than this many times T_bcast is stuck."""
CLOSE_S = 30.0

Publish = Callable[[Version, Mapping[str, Tensor]], object]
Further = Callable[[Version, Callable[[], bool]], object]


def publication_period(t_bcast_s: float, t_train_s: float, s: int) -> int:
    """Returns κ = max(1, ⌈T_bcast / T_train⌉), the smallest that dissemination sustains; at most S + 1."""
    return min(max(1, math.ceil(t_bcast_s / max(t_train_s, 1e-6))), s + 1)


class Snapshot(NamedTuple):
    """A version with its weights. `updated_s`: when its update ended (monotonic clock)."""

    version: Version
    weights: Mapping[str, Tensor]
    updated_s: float
    ready: "torch.cuda.Event | None" = None
    """The event after which the weights on a GPU may be read."""


class PublishThread(threading.Thread):
    """Publishes one version at a time.

    `publish` stores a version's weights and moves the pointer to it; `deadline_s` is the deadline of one version.
    `further` then does what is less urgent; it may ask, by the function it is given, whether a newer version waits.
    """

    def __init__(self, publish: Publish, further: Further, deadline_s: float) -> None:
        super().__init__(name="publish thread", daemon=True)
        self.t_bcast_s = 0.0
        self._publish = publish
        self._further = further
        self._deadline_s = deadline_s
        self._changed = threading.Condition()
        self._waiting: Snapshot | None = None
        self._publishing: Snapshot | None = None
        self._arriving: Snapshot | None = None
        self._failure: BaseException | None = None
        self._closed = False

    def hand_over(self, version: Version, weights: Mapping[str, Tensor]) -> None:
        """Publishes `weights` in the background, as soon as no other version is being published."""
        snapshot = Snapshot(version, weights, time.monotonic(), ready(weights))
        with self._changed:
            self.check()
            self._waiting = snapshot
            self._changed.notify_all()

    def wait(self) -> None:
        """Waits until everything handed over is published. Raises `DeadlineError` naming the version that is not."""
        with self._changed:
            while self._failure is None and (snapshot := self._publishing or self._waiting):
                # Where versions take long, one may take long; the next version has a deadline of its own.
                deadline_s = max(self._deadline_s, STUCK_FACTOR * self.t_bcast_s)
                if not self._changed.wait_for(lambda was=snapshot: self._has_left(was), deadline_s):  # type: ignore[misc]
                    what = f"version {snapshot.version} was not published within {deadline_s:.0f} s"
                    fix = "check that the object store accepts data; a restart publishes the newest version again"
                    raise DeadlineError(Problem("publish thread", what, fix))
        self.check()

    def check(self) -> None:
        """Raises the error that stopped this thread, if any."""
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        """Finishes the version that is being published if that takes no longer than usual; drops one that waits."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self.join(max(CLOSE_S, STUCK_FACTOR * self.t_bcast_s))
        if self.is_alive():
            log.warning("a version is left half published; nothing points to it")

    def run(self) -> None:
        while snapshot := self._next():
            try:
                with side_stream(snapshot.ready):
                    self._publish(snapshot.version, snapshot.weights)
                    self._start_measuring(snapshot)
                    self._end_publication()
                    self._further(snapshot.version, self._hurried)
            except BaseException as error:
                self._failure = error
                self._end_publication()

    def _end_publication(self) -> None:
        """Wakes `wait`, which need not wait for the less urgent work of `further`."""
        with self._changed:
            self._publishing = None
            self._changed.notify_all()

    def _hurried(self) -> bool:
        return self._waiting is not None or self._closed

    def _has_left(self, snapshot: Snapshot) -> bool:
        return self._failure is not None or (self._publishing is not snapshot and self._waiting is not snapshot)

    def _next(self) -> Snapshot | None:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closed or self._failure)
            if self._closed or self._failure:
                return None
            self._publishing, self._waiting = self._waiting, None
            return self._publishing

    def observe(self, status: Status) -> None:
        """Checks whether the version on its way has arrived at every worker. Any thread may call it."""
        arriving = self._arriving
        serving = [worker.heartbeat.version for worker in status.workers if worker.heartbeat is not None]
        if arriving is not None and serving and min(serving) >= arriving.version:
            self._arriving = None
            self._measure(time.monotonic() - arriving.updated_s)

    def _start_measuring(self, snapshot: Snapshot) -> None:
        if self.t_bcast_s == 0.0:
            self._measure(time.monotonic() - snapshot.updated_s)
        if self._arriving is None:
            self._arriving = snapshot._replace(weights={})

    def _measure(self, seconds: float) -> None:
        self.t_bcast_s = seconds if self.t_bcast_s == 0.0 else (1 - SMOOTHING) * self.t_bcast_s + SMOOTHING * seconds
