"""Publishes weights while training goes on, and measures how long they take to arrive.

- The share that `hand_over` is given is a copy, which no later update changes.
- One version is published at a time, and a version is handed over only when none is being published (`free`): the
  learner leaves others out, and is never held up. Admission itself waits for the publications it needs.
- A version has arrived once every living worker's heartbeat names it or a newer one; the time since the end of its
  update is T_bcast, as coarse as heartbeats are. Without workers T_bcast is the time that publishing took.
- An error in the background is raised by the next call.
"""

import logging
import threading
import time
from collections.abc import Callable
from typing import NamedTuple, Self

import torch

from echo_queue.checked_thread import CheckedThread
from echo_queue.errors import DeadlineError, Problem
from echo_queue.queue import Status
from echo_queue.queue.staleness_rules import kappa_needed
from echo_queue.records import Version
from echo_queue.weights.layout import Share
from learner.model.device import ready, side_stream

log = logging.getLogger(__name__)

SMOOTHING = 0.3
"""Weight of the newest measurement of T_bcast."""
STUCK_FACTOR = 10.0
"""A publication that takes longer than this many times T_bcast is stuck."""
CLOSE_S = 30.0

Publish = Callable[[Version, Share], object]
Further = Callable[[Version, Callable[[], bool]], object]


def publication_period(t_bcast_s: float, t_train_s: float, s: int) -> int:
    """Returns the needed κ, at most S + 1."""
    return min(kappa_needed(t_bcast_s, t_train_s), s + 1)


class Snapshot(NamedTuple):
    """A version with a rank's share of its weights. `updated_s`: when its update ended (monotonic clock)."""

    version: Version
    share: Share
    updated_s: float
    ready: "torch.cuda.Event | None" = None
    """The event after which the weights on a GPU may be read."""

    @classmethod
    def now(cls, version: Version, share: Share) -> Self:
        """Returns the snapshot of a version whose update has just ended."""
        return cls(version, share, time.monotonic(), ready(share.rows.values()))


class PublishThread(CheckedThread):
    """Publishes one version at a time.

    `publish` stores a version's weights and moves the pointer to it; `deadline_s` is the deadline of one version.
    `further` then does what is less urgent; it may ask, by the function it is given, whether a newer version waits.
    """

    def __init__(self, publish: Publish, further: Further, deadline_s: float) -> None:
        super().__init__("publish thread")
        self.t_bcast_s = 0.0
        self._publish = publish
        self._further = further
        self._deadline_s = deadline_s
        self._changed = threading.Condition()
        self._waiting: Snapshot | None = None
        self._publishing: Snapshot | None = None
        self._arriving: tuple[Version, float] | None = None
        """The version that is on its way to the workers, and when its update ended."""
        self._closed = False

    @property
    def free(self) -> bool:
        """True if a version may be handed over. Less urgent work may still go on, but is then brought to an end."""
        with self._changed:
            return self._publishing is None and self._waiting is None

    def hand_over(self, snapshot: Snapshot) -> None:
        """Publishes a snapshot in the background. Raises `RuntimeError` if the thread is not `free`."""
        with self._changed:
            self.check()
            if not self.free:
                raise RuntimeError(f"{snapshot.version} was handed over before another version was published")
            self._waiting = snapshot
            self._changed.notify_all()

    def wait(self) -> None:
        """Waits until everything handed over is published. Raises `DeadlineError` naming the version that is not."""
        with self._changed:
            while self.failure is None and (snapshot := self._publishing or self._waiting):
                # Where versions take long, one may take long; the next version has a deadline of its own.
                deadline_s = max(self._deadline_s, STUCK_FACTOR * self.t_bcast_s)
                if not self._changed.wait_for(lambda was=snapshot: self._has_left(was), deadline_s):  # type: ignore[misc]
                    what = f"version {snapshot.version} was not published within {deadline_s:.0f} s"
                    fix = "check that the object store accepts data; a restart publishes the newest version again"
                    raise DeadlineError(Problem("publish thread", what, fix))
        self.check()

    def close(self) -> None:
        """Finishes the version that is being published if that takes no longer than usual; drops one that waits."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self.join(max(CLOSE_S, STUCK_FACTOR * self.t_bcast_s))
        if self.is_alive():
            log.warning("a version is left half published; nothing points to it")

    def work(self) -> None:
        while self._next():
            self._further(self._publish_next(), self._hurried)

    def ended(self) -> None:
        self._end_publication()

    def _publish_next(self) -> Version:
        """Publishes the next version, and returns it. Its share is let go: what is further made of it is kept."""
        snapshot = self._publishing
        assert snapshot is not None
        with side_stream(snapshot.ready):
            self._publish(snapshot.version, snapshot.share)
        self._start_measuring(snapshot)
        self._end_publication()
        return snapshot.version

    def _end_publication(self) -> None:
        """Wakes `wait`, which need not wait for the less urgent work of `further`."""
        with self._changed:
            self._publishing = None
            self._changed.notify_all()

    def _hurried(self) -> bool:
        return self._waiting is not None or self._closed

    def _has_left(self, snapshot: Snapshot) -> bool:
        return self.failure is not None or (self._publishing is not snapshot and self._waiting is not snapshot)

    def _next(self) -> bool:
        """Waits for a version to publish. Returns whether there is one."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closed)
            if self._closed:
                return False
            self._publishing, self._waiting = self._waiting, None
            return True

    def observe(self, status: Status) -> None:
        """Checks whether the version on its way has arrived at every worker. Any thread may call it."""
        arriving = self._arriving
        serving = [worker.heartbeat.version for worker in status.workers if worker.heartbeat is not None]
        if arriving is not None and serving and min(serving) >= arriving[0]:
            self._arriving = None
            self._measure(time.monotonic() - arriving[1])

    def _start_measuring(self, snapshot: Snapshot) -> None:
        if self.t_bcast_s == 0.0:
            self._measure(time.monotonic() - snapshot.updated_s)
        if self._arriving is None:
            self._arriving = snapshot.version, snapshot.updated_s

    def _measure(self, seconds: float) -> None:
        self.t_bcast_s = seconds if self.t_bcast_s == 0.0 else (1 - SMOOTHING) * self.t_bcast_s + SMOOTHING * seconds
