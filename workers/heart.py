"""Keeps a worker's leases and shows it to the others, while its main thread generates.

- Every heartbeat renews all leases held and says what the worker does and how fast.
- A task that is no longer held (cancelled, or taken over) is marked lost; once all tasks of a call are, its `stop`
  is set.
- A heart that fails stops the worker: `check` raises its error in the main thread.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Iterable

from echo_queue.queue import Beat, Queue
from echo_queue.records import Task, Version
from workers.engines import Engine

log = logging.getLogger(__name__)

RATE_WINDOW_S = 10.0


class Call:
    """The tasks of one generation call, as long as this worker answers for them."""

    def __init__(self, tasks: Iterable[Task], version: int) -> None:
        self.version = version
        """Of the weights that generate it."""
        self.stop = threading.Event()
        """Set when nobody wants this call's samples any more, or the worker must leave."""
        self._held = {task.id for task in tasks}
        self._lock = threading.Lock()

    @property
    def held(self) -> list[str]:
        with self._lock:
            return sorted(self._held)

    def drop(self, task_ids: Iterable[str]) -> None:
        """They were completed, failed, handed back or lost."""
        with self._lock:
            self._held.difference_update(task_ids)
            if not self._held:
                self.stop.set()

    def holds(self, task: Task) -> bool:
        with self._lock:
            return task.id in self._held


class Heart(threading.Thread):
    def __init__(self, queue: Queue, worker: str, engine: Engine, every_s: float) -> None:
        super().__init__(name="heart", daemon=True)
        self.state = "starting"
        self.accepted = 0
        """Groups that the queue accepted."""
        self.call = Call((), engine.version.number)
        self._queue = queue
        self._worker = worker
        self._engine = engine
        self._every_s = every_s
        self._past: deque[tuple[float, int, int]] = deque([(time.monotonic(), engine.sampled, 0)])
        self._error: Exception | None = None
        self._closed = threading.Event()

    def run(self) -> None:
        while not self._closed.is_set():
            try:
                self._renew(self.call)
                self._queue.beat(self._worker, self._beat(), self._every_s)
            except Exception as error:
                self._error = error
                return
            self._closed.wait(self._every_s)

    def check(self) -> None:
        """Raises what stopped the heart, if anything did."""
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        self._closed.set()
        self.join(timeout=self._every_s)

    def _renew(self, call: Call) -> None:
        lost = self._queue.renew(self._worker, call.held, call.version)
        still_held = [task for task in lost if task in call.held]  # the main thread may have finished some meanwhile
        if still_held:
            call.drop(still_held)
            log.info("lost %d tasks: cancelled or taken over (%s)", len(still_held), ", ".join(still_held))

    def _beat(self) -> Beat:
        now, sampled, accepted = time.monotonic(), self._engine.sampled, self.accepted
        while len(self._past) > 1 and now - self._past[0][0] > RATE_WINDOW_S:
            self._past.popleft()
        then, sampled_then, accepted_then = self._past[0]
        self._past.append((now, sampled, accepted))
        passed_s = max(now - then, 1e-3)
        version: Version = self._engine.version
        return Beat(
            engine=self._engine.name,
            version=version,
            state=self.state,
            tokens_per_s=(sampled - sampled_then) / passed_s,
            groups_per_s=(accepted - accepted_then) / passed_s,
            groups=accepted,
        )
