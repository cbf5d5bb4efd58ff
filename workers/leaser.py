"""The thread that gets new leases: it leases tasks while there is room for them, and reads their prompts.

Generation goes on meanwhile.

- A leased task is in `HeldLeases` before any other thread learns of it, so that a shutdown hands it back.
- At most as many tasks are leased as there was room for at the last `exchange`.
- A task whose prompt or partial rollout cannot be read loses an attempt, with the reason, whatever error that is. Only
  the error of a service, or a wait past its deadline, ends the thread.
- If the worker holds no task and is offered none for `rollout.idle_deadline_s`, while no learner is heard, an error
  says what it waited for. A learner that is heard and stands still is waited for `STILL` times as long. A worker that
  is suspended waits as long for its reinstatement.
"""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from echo_queue.checked_thread import CheckedThread
from echo_queue.config import Config
from echo_queue.errors import EchoQueueError, IdleError, Problem
from echo_queue.queue import Lease, WorkerQueue, diagnosis
from echo_queue.queue.reasons import in_one_line
from echo_queue.records import NOTHING, Published, Task, Version
from echo_queue.submission.shards import ShardReader
from workers.assignment import Assignment
from workers.engines import Sampling
from workers.environments.tracebacks import formatted
from workers.held_leases import HeldLeases
from workers.item_errors import UnknownSet, is_of_item
from workers.prompt_encoder import PromptEncoder

log = logging.getLogger(__name__)

IDLE_S = 1.0
LOOK_S = 5.0
"""The longest wait for an offered task, after which an idle worker looks by itself."""
KEEPER_LOOK_S = 0.5
"""The same for a worker that keeps its version: no offer tells it that the round of evaluation is answered."""
SAME = "start all roles with the same configuration"
STILL = 4.0
"""An update may take long: a learner that is heard is waited for so many times as long as one that is silent."""


@dataclass(frozen=True, eq=False)
class LeasedTasks:
    """Assignments that weights of `needed` or newer may generate; None: those that were served at the lease.

    Those of an evaluation come by themselves, since only the version that they name may generate them.
    """

    assignments: list[Assignment]
    needed: Version | None


class TaskLeaser(CheckedThread):
    """Leases tasks and makes them assignments. `serving` returns the version that the engine serves now."""

    def __init__(
        self,
        config: Config,
        worker: str,
        queue: WorkerQueue,
        *,
        prompts: PromptEncoder,
        shards: ShardReader,
        held: HeldLeases,
        serving: Callable[[], Version],
    ) -> None:
        super().__init__("task leaser")
        self.finished = False
        """True once the run is finished: there will be no more tasks."""
        self.wake = threading.Event()
        """Set when there is something to `exchange`."""
        self.keeps: Version | None = None
        """The version that this worker is to serve until its round of evaluation is answered, as of the last lease."""
        self._config = config
        self._worker = worker
        self._queue = queue
        self._prompts = prompts
        self._shards = shards
        self._held = held
        self._serving = serving
        self._room = 0
        self._leased: list[LeasedTasks] = []
        self._lock = threading.Lock()
        self._lease_lock = threading.Lock()
        self._wanted = threading.Event()
        self._closed = False
        self._asks = False
        """True if one lease is to be made although there is no room."""
        self._suspended_s: float | None = None
        """Since when the learner lets this worker lease nothing; None: it may lease."""
        self._learner: tuple[Version, Published | None] | None = None
        """The learner's version and the newest weights, as of the last lease that found no task."""
        self._moved_s = time.monotonic()
        """The time since when this worker holds no task, was offered none, and the learner stands still."""
        self._beat, self._heard_s = b"", self._moved_s
        """The learner's last sign of life, and when this idle worker saw a new one."""

    def exchange(self, room: int) -> list[LeasedTasks]:
        """Main thread: returns the tasks leased since the last call.

        If there are none, the thread leases up to `room` groups from now on.
        """
        with self._lock:
            leased, self._leased = self._leased, []
            self._room = 0 if leased else room
        if self._room:
            self._wanted.set()
        return leased

    def look(self) -> None:
        """Main thread: asks, also without room, whether this worker is to keep the weights that it serves now."""
        self._asks = bool(self._config.evaluation)
        self._wanted.set()

    def forget(self) -> None:
        """Main thread: drops the tasks that were leased and not exchanged; leases none until the next `exchange`."""
        with self._lock:
            self._room = 0
        with self._lease_lock, self._lock:
            self._leased = []

    def close(self) -> None:
        """Main thread: ends the thread. Every task that it has leased is in `HeldLeases` when this returns."""
        self._closed = True
        self._wanted.set()
        self.forget()

    def work(self) -> None:
        """Leases tasks whenever there is room, until the run is finished, an error occurs, or `close` is called."""
        while not self._closed:
            if not (self._room or self._asks):
                self._wanted.wait(IDLE_S)
                self._wanted.clear()
                self._note_move()
                continue
            with self._lease_lock:
                lease = self._lease(0 if self._closed else self._room)
            if lease is not None and lease.finished:
                self.finished = True
                return
            if lease is not None and not lease.tasks and self._room:
                self._wait_for_offer(lease)

    def ended(self) -> None:
        self.wake.set()

    def _lease(self, room: int) -> Lease | None:
        """Leases and prepares up to `room` tasks; returns None if there is no room any more, and nothing to ask."""
        if not (room or self._asks) or self._closed:
            return None
        self._asks = False
        serving = self._serving()
        lease = self._queue.lease(self._worker, serving, room)
        self.keeps = serving if lease.keeps else None
        self._tell_suspension(lease.suspended)
        if lease.tasks:
            needed = weights_needed(lease, serving, refresh=self._config.rollout.mode in ("pull", "sync"))
            held_out = [task for task in lease.tasks if task.version is not None]
            trained = [task for task in lease.tasks if task.version is None]
            self._held.add(held_out, serving.number)
            self._held.add(trained, (needed or serving).number)
            leased = [
                LeasedTasks([one for task in tasks if (one := self._assign(task, lease)) is not None], needs)
                for tasks, needs in ((held_out, None), (trained, needed))
            ]
            with self._lock:
                self._leased += leased
                self._room = 0
            self.wake.set()
        return lease

    def _tell_suspension(self, why: str) -> None:
        """Says once that the learner lets this worker lease nothing, or lets it lease again."""
        if why and self._suspended_s is None:
            self._suspended_s = time.monotonic()
            fix = f"mend what is broken here, then `echo-queue reinstate CONFIG {self._worker}`"
            log.error("the learner has suspended this worker: %s\n  → %s", why, fix)
        elif not why and self._suspended_s is not None:
            self._suspended_s = None
            log.info("this worker may lease again")

    def _assign(self, task: Task, lease: Lease) -> Assignment | None:
        """Reads the task's prompt and partial rollout; fails the task and returns None if they cannot be read."""
        try:
            return self._read(task, lease)
        except Exception as error:
            if not is_of_item(error):
                raise
            reason = str(error) if isinstance(error, EchoQueueError) else formatted(error)
            log.warning("task %s failed, attempt %d: %s", task.id, task.attempt + 1, in_one_line(reason))
            self._queue.fail(self._worker, task.id, reason)
            self._held.drop([task])
            return None

    def _read(self, task: Task, lease: Lease) -> Assignment:
        terms = terms_of(task, self._config)
        row = self._shards.row(task)
        prompt = self._prompts.encode(row)
        partials = lease.partials.get(task.id)
        samples = partials.samples if partials else [NOTHING] * terms.samples
        lineage = partials.lineage if partials else 0
        return Assignment(
            task,
            row,
            prompt,
            self._config.run.seed,
            terms.limit,
            terms.sampling,
            samples=list(samples),
            lineage=lineage,
        )

    def _wait_for_offer(self, lease: Lease) -> None:
        """Waits until a task may have come.

        Raises `IdleError` if no learner is heard for too long, or, in a run that is not kept open, none moves; or if
        nobody reinstates this worker.
        """
        learner, deadline_s = (lease.learner_version, lease.published), self._config.rollout.idle_deadline_s
        if learner != self._learner or self._held:
            self._learner = learner
            self._note_move()
        if (beat := self._queue.learner_beat()) != self._beat:
            self._beat, self._heard_s = beat, time.monotonic()
        still_s, silent_s = time.monotonic() - self._moved_s, time.monotonic() - self._heard_s
        if silent_s > deadline_s or (still_s > STILL * deadline_s and not self._config.run.keep_open):
            self._give_up(lease, still_s)
        if self._suspended_s is not None and time.monotonic() - self._suspended_s > deadline_s:
            fix = "mend what is broken here, and start the worker under another name, or reinstate it before"
            raise IdleError(
                Problem("tasks", f"this worker is suspended for {deadline_s:.0f} s: {lease.suspended}", fix)
            )
        look_s = KEEPER_LOOK_S if lease.keeps else LOOK_S
        if self._queue.wait_for_work(self._worker, min(look_s, deadline_s)):
            self._note_move()

    def _note_move(self) -> None:
        self._moved_s = self._heard_s = time.monotonic()

    def _give_up(self, lease: Lease, still_s: float) -> None:
        who = "`echo-queue status` says which role holds the run up"
        fix = f"{who}; give this machine back until the learner is heard, or raise rollout.idle_deadline_s"
        raise IdleError(Problem("tasks", diagnosis.of_worker(lease, self._serving(), still_s), fix))


class Terms(NamedTuple):
    """How many samples a task asks for, the most tokens of each, and how they are drawn."""

    samples: int
    limit: int
    sampling: Sampling


def terms_of(task: Task, config: Config) -> Terms:
    """Returns the terms of training, or of the task's evaluation. Raises `UnknownSet`."""
    rollout, model = config.rollout, config.model
    if task.version is None:
        if config.mixture and config.component_of(task.set) is None:
            what = f"the configuration of this worker names no component of set {task.set}, whose prompts are trained"
            raise UnknownSet(Problem("mixture", what, SAME))
        limit = config.new_tokens_of(task.set)
        return Terms(rollout.group_size, limit, Sampling(rollout.temperature, rollout.top_p))
    if (evaluation := config.evaluation_of(task.set)) is None:
        what = f"the configuration of this worker names no evaluation {task.set}, whose prompts the learner asks"
        raise UnknownSet(Problem("evaluation", what, SAME))
    return Terms(evaluation.samples, evaluation.limit(model), Sampling(evaluation.temperature, evaluation.top_p))


def weights_needed(lease: Lease, serving: Version, refresh: bool = False) -> Version | None:
    """Returns the oldest version that may generate what a lease has to train; None if the version served now may.

    `refresh`: only the newest version may.
    """
    needs = [task.min_pv for task in lease.tasks if task.version is None]
    if lease.published is None or not needs:
        return None
    newest = lease.published.version
    if lease.abandoned or (refresh and serving < newest):
        return newest
    number = max(needs)
    return Version(newest.lineage, number) if serving.number < number else None
