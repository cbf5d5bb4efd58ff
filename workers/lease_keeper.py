"""The thread that keeps the leases held: it renews them, stores partial rollouts and sends the worker's heartbeats.

- Every turn renews all leases held, then sends a heartbeat that says what the worker does and how fast.
- A task that was cancelled or taken over is dropped from `HeldLeases`.
- The version in a heartbeat is one that the engine has loaded whole, and a change is reported at once.
- An error of this thread stops the worker: `check` raises it in the main thread. A partial rollout that cannot be
  stored stops nothing; it is left out.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from echo_queue import __version__
from echo_queue.checked_thread import CheckedThread
from echo_queue.queue import Heartbeat, WorkerOrder, WorkerQueue
from echo_queue.queue.counts import counted
from echo_queue.queue.generation_times import GenerationTimes
from echo_queue.queue.types import Departure
from echo_queue.records import PartialGroup, Published, Task, Version
from workers.engines import Engine
from workers.environments.protocol import Spent
from workers.held_leases import HeldLeases
from workers.item_errors import at_once

log = logging.getLogger(__name__)

RATE_WINDOW_S = 10.0
"""The time over which tokens are counted."""
RATE_STEPS = 8
"""The number of times that groups were accepted over which they are counted: minutes, if groups take minutes."""
CLOSE_S = 2.0
"""The longest wait for a heartbeat in progress. One that arrived after the worker had left would list it again."""


class Serving(NamedTuple):
    """The version that generates, when it was published (0: unknown), and how long generation paused to load it."""

    version: Version
    published_ms: int = 0
    pause_s: float = 0.0


class Place(NamedTuple):
    """The pool and the machine of a worker, for people and controllers."""

    pool: str
    machine: str


class Scoring(NamedTuple):
    """The mean time of the environment's last calls, the samples that wait for it, and what judges have cost so far."""

    call_s: float
    unscored: int
    spent: Spent = Spent()


class GroupRate:
    """The groups accepted per second since the last `RATE_STEPS` times that some were; it falls while none are."""

    def __init__(self, began_s: float) -> None:
        self._past: deque[tuple[float, int]] = deque([(began_s, 0)], RATE_STEPS + 1)

    def per_s(self, now_s: float, accepted: int) -> float:
        """Returns the rate at `now_s`, by when `accepted` groups were accepted since the beginning."""
        if accepted > self._past[-1][1]:
            self._past.append((now_s, accepted))
        return _rate(self._past[0], (now_s, accepted))


class LeaseKeeper(CheckedThread):
    """Renews, stores and reports every `every_s` seconds.

    `accepted` returns the number of groups that the queue has accepted so far, and `generation_s` the times of the last
    of them. `fetched` has the weight bytes fetched so far, by source; all but those from the "store" came from other
    workers. Other threads count all four. `obey` is called with the order of the fleet's controller that answers a
    heartbeat, if there is one.
    """

    def __init__(
        self,
        queue: WorkerQueue,
        worker: str,
        engine: Engine,
        held: HeldLeases,
        *,
        every_s: float,
        accepted: Callable[[], int],
        generation_s: Callable[[], Sequence[float]],
        scoring: Callable[[], Scoring],
        fetched: Mapping[str, int],
        place: Place,
        obey: Callable[[WorkerOrder], None],
    ) -> None:
        super().__init__("lease keeper")
        self.state = "starting"
        self._held = held
        self._accepted = accepted
        self._generation_s = generation_s
        self._scoring = scoring
        self._place = place
        self._queue = queue
        self._worker = worker
        self._engine = engine
        self._every_s = every_s
        began_s = time.monotonic()
        self._sampled_past: deque[tuple[float, int]] = deque([(began_s, engine.sampled)])
        self._group_rate = GroupRate(began_s)
        self._fetched = fetched
        self._obey = obey
        self._serving = self._reported = Serving(engine.version)
        self._joined = False
        self._storing = threading.Lock()
        self._unstorable = set[Task]()
        self._wake = threading.Event()
        self._closed = False

    def work(self) -> None:
        while not self._closed:
            self._wake.clear()
            self._renew()
            if self._closed:
                return
            serving = self._serving
            order = self._queue.heartbeat(self._worker, self._heartbeat(serving), self._every_s)
            self._reported = serving
            if order is not None:
                self._obey(order)
            self._wake.wait(self._every_s)

    def serve(self, published: Published, pause_s: float) -> None:
        """Main thread: sends a heartbeat at once that names the version that the engine has just loaded.

        The heartbeat also says when that version was published, except for the first version, because the worker did
        not exist before. `pause_s`: the seconds for which generation paused to load it.
        """
        self._serving = Serving(published.version, published.ms if self._joined else 0, pause_s)
        self._joined = True
        self._wake.set()

    def hand_back(self, tasks: Collection[Task] | None = None) -> list[str]:
        """Main thread: hands back these tasks, or all that are held, for other workers to continue.

        Returns the ids of those that were held.
        """
        return self._held.hand_back(partial(self._queue.release, self._worker), tasks)

    def store_partials(self) -> None:
        """Main thread: stores the partial rollouts that were noted last, after a call that is under way.

        An older call that came in later would replace them. Leases are renewed meanwhile.
        """
        with self._storing:
            self._store()

    def leave(self, why: Departure) -> None:
        """Main thread: reports to the queue that this worker, which holds no task any more, has left."""
        self._queue.leave(self._worker, why)

    def leave_after_error(self) -> None:
        """Main thread: the same for a worker that fails. Nobody waits long for a server that may be the error."""
        leaving = threading.Thread(target=self.leave, args=("error",), daemon=True)
        leaving.start()
        leaving.join(CLOSE_S)

    def close(self) -> None:
        """Ends the thread after a heartbeat in progress, for which it waits at most `CLOSE_S`."""
        self._closed = True
        self._wake.set()
        self.join(timeout=CLOSE_S)

    def _renew(self) -> None:
        with self._held.turn:
            held = self._held.versions()
            lost = self._queue.renew(self._worker, {task.id: version for task, version in held})
            self._drop([task for task, _ in held], lost)
        if self._storing.acquire(blocking=False):  # else the main thread stores them
            try:
                self._store()
            finally:
                self._storing.release()

    def _store(self) -> None:
        noted = self._held.take_partials()  # of what is still held: nobody would remove an object of the others
        at_once(self._progress, [one for one in noted if one[0] not in self._unstorable], self._cannot_store)

    def _progress(self, noted: Sequence[tuple[Task, PartialGroup]]) -> None:
        if noted:
            lost = self._queue.progress(self._worker, [partial for _, partial in noted])
            self._drop([task for task, _ in noted], lost)

    def _cannot_store(self, noted: tuple[Task, PartialGroup], error: Exception) -> None:
        """Goes on without: the task is still generated, and its completion decides whether it fails."""
        self._unstorable.add(noted[0])
        log.warning("the partial rollout of task %s cannot be stored any further: %s", noted[0].id, error)

    def _drop(self, asked: Sequence[Task], lost: Collection[str]) -> None:
        """Drops the tasks that were asked about and are lost; other threads may have finished some meanwhile."""
        if still_held := self._held.drop([task for task in asked if task.id in lost]):
            lost_tasks = counted(len(still_held), "task")
            log.info("lost %s: cancelled or taken over (%s)", lost_tasks, ", ".join(still_held))

    def _heartbeat(self, serving: Serving) -> Heartbeat:
        now_s, accepted = time.monotonic(), self._accepted()
        scoring = self._scoring()
        fetched_bytes, store_bytes = sum(self._fetched.values()), self._fetched.get("store", 0)
        return Heartbeat(
            engine=self._engine.name,
            version=serving.version,
            state=self.state,
            tokens_per_s=self._tokens_per_s(now_s),
            groups_per_s=self._group_rate.per_s(now_s, accepted),
            groups=accepted,
            published_ms=0 if serving is self._reported else serving.published_ms,
            pause_ms=1000 * serving.pause_s,
            store_bytes=store_bytes,
            peer_bytes=max(0, fetched_bytes - store_bytes),
            release=__version__,
            pool=self._place.pool,
            machine=self._place.machine,
            generation=GenerationTimes.of(self._generation_s()),
            scoring_s=scoring.call_s,
            unscored=scoring.unscored,
            judge_calls=scoring.spent.calls,
            judge_tokens=scoring.spent.tokens,
        )

    def _tokens_per_s(self, now_s: float) -> float:
        past = self._sampled_past
        while len(past) > 1 and now_s - past[0][0] > RATE_WINDOW_S:
            past.popleft()
        past.append((now_s, self._engine.sampled))
        return _rate(past[0], past[-1])


def _rate(first: tuple[float, int], last: tuple[float, int]) -> float:
    """Returns the number per second between two readings of a counter."""
    return (last[1] - first[1]) / max(last[0] - first[0], 1e-3)
