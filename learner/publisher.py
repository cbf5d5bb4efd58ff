"""Publishes weights while training goes on, one version at a time, and measures how long they take to arrive.

- A snapshot is copied before `hand_over` returns, so that the next update cannot change it.
- A version is served once every living worker's heartbeat names it or a newer one; the time since the end of its
  update is T_bcast, as coarse as heartbeats are. Without workers it is the time that publishing took.
- A failure in the background surfaces at the next call.
"""

import logging
import math
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor

from torch import Tensor

from echo_queue.queue import Status
from echo_queue.records import Version

log = logging.getLogger(__name__)

SMOOTHING = 0.3
"""Weight of the newest measurement of T_bcast."""

Publish = Callable[[Version, Mapping[str, Tensor]], object]


def publication_period(t_bcast_s: float, t_train_s: float, s: int) -> int:
    """κ = max(1, ⌈T_bcast / T_train⌉), the smallest that dissemination sustains; at most S + 1."""
    return min(max(1, math.ceil(t_bcast_s / max(t_train_s, 1e-6))), s + 1)


class Publisher:
    """`publish` stores the weights of a version and moves the pointer to it."""

    def __init__(self, publish: Publish) -> None:
        self._publish = publish
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="publisher")
        self._under_way: Future[None] | None = None
        self._arriving: tuple[Version, float] | None = None
        self.t_bcast_s = 0.0

    def hand_over(self, version: Version, weights: Mapping[str, Tensor]) -> float:
        """Publishes a copy of `weights` in the background. Returns the seconds it had to wait for the one before."""
        waited_s = self.wait()
        copies = {name: tensor.clone() for name, tensor in weights.items()}
        self._under_way = self._pool.submit(self._run, version, copies, time.monotonic())
        return waited_s

    def wait(self) -> float:
        """Until nothing is under way; raises what went wrong there. Returns the seconds spent."""
        began = time.monotonic()
        if self._under_way is not None:
            under_way, self._under_way = self._under_way, None
            under_way.result()
        return time.monotonic() - began

    def check(self) -> None:
        """Raises what went wrong in the background, without waiting."""
        if self._under_way is not None and self._under_way.done():
            self.wait()

    def observe(self, status: Status) -> None:
        """Looks whether the version on its way has arrived everywhere. May be called from another thread."""
        arriving = self._arriving
        serving = [worker.beat.version for worker in status.workers if worker.beat is not None]
        if arriving is not None and serving and min(serving) >= arriving[0]:
            self._arriving = None
            self._measure(time.monotonic() - arriving[1])

    def close(self) -> None:
        self._pool.shutdown(wait=True)

    def _run(self, version: Version, weights: Mapping[str, Tensor], updated: float) -> None:
        self._publish(version, weights)
        if self.t_bcast_s == 0.0:
            self._measure(time.monotonic() - updated)
        if self._arriving is None:
            self._arriving = (version, updated)

    def _measure(self, seconds: float) -> None:
        self.t_bcast_s = seconds if self.t_bcast_s == 0.0 else (1 - SMOOTHING) * self.t_bcast_s + SMOOTHING * seconds
