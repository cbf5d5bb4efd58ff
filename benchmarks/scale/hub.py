"""Runs thousands of blocking loops in one thread: greenlets, each of which the hub resumes when its wait is over.

The loops are those of the roles' own threads (`WeightWatcher.run` and its like), which know nothing of it. They wait by
sockets (`hub_client`), by `threading.Event` and by `time.sleep`; `take_over` puts the hub's own in place of the last
two, in a process that runs nothing else.
"""

import heapq
import select
import threading
import time
from collections import deque
from collections.abc import Callable
from itertools import count

from greenlet import getcurrent, greenlet


class Parked:
    """A greenlet that waits. The first reason to resume it wins."""

    def __init__(self) -> None:
        self.loop = getcurrent()
        self.resumed = False
        self.value = False


class Hub:
    """The loop over all greenlets. All methods but `run` and `spawn` are for greenlets."""

    def __init__(self) -> None:
        self._poll = select.epoll()
        self._readers: dict[int, Parked] = {}
        self._timers: list[tuple[float, int, Parked]] = []
        self._order = count()
        self._ready: deque[Parked] = deque()
        self._itself: greenlet = getcurrent()
        self._stopped = False

    def spawn(self, loop: Callable[[], object]) -> None:
        """Begins a loop at the hub's next turn. An exception that leaves it ends `run`."""
        parked = Parked()
        parked.loop = greenlet(loop, parent=self._itself)
        self._ready.append(parked)

    def watch(self, descriptor: int) -> None:
        """Lets `wait_readable` wait for this socket from now on."""
        self._poll.register(descriptor, select.EPOLLIN)

    def wait_readable(self, descriptor: int) -> None:
        self._readers[descriptor] = parked = Parked()
        self.park(parked, None)

    def sleep(self, seconds: float) -> None:
        self.park(Parked(), seconds)

    def park(self, parked: Parked, timeout_s: float | None) -> bool:
        """Waits until `resume` or the timeout. Returns what `resume` was given; False after the timeout."""
        if timeout_s is not None:
            heapq.heappush(self._timers, (time.monotonic() + timeout_s, next(self._order), parked))
        self._itself.switch()
        return parked.value

    def resume(self, parked: Parked, value: bool) -> None:
        if not parked.resumed:
            parked.resumed, parked.value = True, value
            self._ready.append(parked)

    def stop(self) -> None:
        self._stopped = True

    def run(self) -> None:
        """Runs all loops until `stop`. Raises the first exception that leaves one of them."""
        self._itself = getcurrent()
        while not self._stopped:
            while self._ready:
                self._ready.popleft().loop.switch()
            for descriptor, _ in self._poll.poll(self._pause_s()):
                if (parked := self._readers.pop(descriptor, None)) is not None:
                    self.resume(parked, True)
            now = time.monotonic()
            while self._timers and self._timers[0][0] <= now:
                self.resume(heapq.heappop(self._timers)[2], False)

    def _pause_s(self) -> float:
        return max(0.0, self._timers[0][0] - time.monotonic()) if self._timers else 0.1


class HubEvent:
    """`threading.Event` for greenlets of one hub."""

    hub: Hub

    def __init__(self) -> None:
        self._flag = False
        self._waiting: list[Parked] = []

    def is_set(self) -> bool:
        return self._flag

    def set(self) -> None:
        self._flag = True
        waiting, self._waiting = self._waiting, []
        for parked in waiting:
            self.hub.resume(parked, True)

    def clear(self) -> None:
        self._flag = False

    def wait(self, timeout: float | None = None) -> bool:
        if not self._flag:
            parked = Parked()
            self._waiting.append(parked)
            self.hub.park(parked, timeout)
            if parked in self._waiting:
                self._waiting.remove(parked)
        return self._flag


def take_over() -> Hub:
    """Returns the hub of this process. From now on events and sleep hold up one greenlet and never the thread."""
    hub = HubEvent.hub = Hub()
    threading.Event = HubEvent  # type: ignore[misc, assignment]
    time.sleep = hub.sleep  # type: ignore[assignment]
    return hub
