"""Collects the groups of the next update.

- Groups that the learner had in hand before a restart come first, in their old order, and never later than S allows.
- All groups that come here may be trained. The queue client rejects bad ones: `drain` and `pending` have each group
  checked by `echo_queue/queue/payloads.py`, with the rules of `echo_queue/records/validation.py`, and bury a bad one
  with the reason and its sender. A worker of which many in a row are bad is suspended; where no other one is heard of,
  the collector waits for another one as long as for a group, and then ends the run.
- With `selection.refill`, groups that teach nothing are taken as well, and others for them
  (`learner.selection.signal`). While the learner waits for those, the queue counts the former as trained, so that other
  prompts are admitted.
- Waiting ends at a deadline with an error that says which role is missing. The deadline counts from the learner's first
  publication, since prompts are admitted with it; that has a deadline ten times as long. Before the deadline, the
  learner is told if Redis is full of groups that it has trained and not committed: nobody else can free them.
- A run that is kept open waits for prompts without a deadline; the learner is told, to save what it has trained.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import NamedTuple, NoReturn

from echo_queue.config import Config
from echo_queue.errors import DeadlineError, EchoQueueError, Problem
from echo_queue.queue import LearnerQueue, Monitor, diagnosis
from echo_queue.queue.counts import counted
from echo_queue.queue.types import WorkerStatus
from echo_queue.queue.worker import CALL_BYTES
from echo_queue.records import Group, Version
from echo_queue.records.validation import GroupValidator
from learner.selection.signal import UpdateGroups

log = logging.getLogger(__name__)

LISTEN_S = 1.0
OWED_S = 0.02
"""Longest wait for a group while a version is to be published as soon as the one before it is."""
UNPUBLISHED_FACTOR = 10.0
"""The first publication may take so many times as long as the wait for a group."""
FULL_AFTER_S = 1.0
"""Groups are waited for so long before, and between, looks at whether Redis is full."""


class Pause(Enum):
    """A reason for which the collector does not wait any longer, and keeps what it has in hand."""

    publish = "a publication can be made up for"
    full = "Redis is full of groups that are trained and not committed"
    idle = "a run that is kept open has nothing to do"


class Batch(NamedTuple):
    """The groups of one update. `starved_s`: how long there were too few; `ready`: how many more are ready to drain.

    `skipped`: how many of the groups the queue has counted as trained already.
    """

    groups: list[Group]
    starved_s: float
    ready: int
    skipped: int = 0


class BatchCollector:
    """Collects the groups of each update. The learner begins at `version` of the lineage that `queue` has resumed.

    `validator`: the one with which `queue` checks the groups that it reads; `handed_out` tells it which weights workers
    may have. Both are called while waiting: `published` returns whether the learner has published a version, and
    `check` may raise.
    """

    def __init__(
        self,
        config: Config,
        queue: LearnerQueue,
        monitor: Monitor,
        validator: GroupValidator,
        *,
        version: Version,
        published: Callable[[], bool],
        check: Callable[[], None],
    ) -> None:
        self._validator, self._monitor, self._queue = validator, monitor, queue
        self.handed_out(version)
        self.pending = deque(queue.pending())
        self._published, self._check = published, check
        self._size, self._refill = config.learner.batch_groups, config.selection.refill
        self._s, self._open = config.staleness.s, config.run.keep_open
        self._deadline_s = config.queue.stall_deadline_s
        self._cursor = "0-0"
        self._skipped: set[str] = set()
        """Those of the groups in hand that the queue has counted as trained."""
        self._short_since: float | None = None
        """The time since when there are too few groups for the next update."""
        self._deserted_since: float | None = None
        """The time since when all workers that are heard of are suspended."""

    def handed_out(self, version: Version) -> None:
        """Notes that workers may generate with these weights from now on."""
        self._validator.newest = version

    def gather(
        self,
        version: int,
        stop: threading.Event,
        owed: Callable[[], bool | None] = lambda: False,
        uncommitted: Callable[[], bool] = lambda: False,
    ) -> Batch | Pause:
        """Returns the groups of the update after `version`: B, and with refill up to B that teach, and others.

        There are fewer only if they are the last ones, of a run that is not kept open, or `stop` is set.

        Returns a `Pause` as soon as it has to wait and `owed` says that a publication can be made up for; while `owed`
        answers None, it will before long. It also returns one once Redis is full, or nothing is left to do, if trained
        groups are `uncommitted`.
        """
        update = self._in_hand(version)
        began_s = last_group_s = time.monotonic()
        ready, outside, look_s = 0, 0, began_s + FULL_AFTER_S
        while update.lacking > 0 and not stop.is_set():
            self._check()
            self._suspend_unworthy()
            drained = self._queue.drain(update.lacking)
            update.add(drained.groups)
            ready, now = drained.ready, time.monotonic()
            if update.lacking <= 0 or (drained.exhausted and not self._open):
                break
            idle = self._open and not drained.outside
            self._skip(update.skippable)
            self._short_since = self._short_since or now
            if (waits := owed()) is True:
                return self._pause(Pause.publish, update.groups)
            if now > look_s:
                if uncommitted() and (idle or not self._queue.has_room(CALL_BYTES)):
                    return self._pause(Pause.idle if idle else Pause.full, update.groups)
                look_s = time.monotonic() + FULL_AFTER_S
            if not self._published():
                self._await_publication(now - began_s)
                last_group_s = now
            # After a loss of Redis, what is trained already leaves the backlog first, and no group can come meanwhile.
            elif drained.groups or drained.malformed or drained.outside < outside or idle or self._deserted_since:
                last_group_s = now
                self._short_since = None if idle else self._short_since
            outside = drained.outside
            if now - last_group_s > self._deadline_s:
                self._give_up(update.lacking)
            self._cursor = self._queue.wait_for_groups(self._cursor, LISTEN_S if waits is False else OWED_S)
        short_since, self._short_since = self._short_since, None
        starved_s, skipped = time.monotonic() - short_since if short_since else 0.0, len(self._skipped)
        self._skipped.clear()
        return Batch(update.groups, starved_s, ready, skipped)

    def _suspend_unworthy(self) -> None:
        """Suspends workers that send nothing but bad groups. Raises `EchoQueueError` if no other one comes in time."""
        found = self._validator.find_unworthy()
        for one in found:
            log.warning("worker %s leases nothing more: %s", one.name, one.reason)
            self._queue.suspend(one.name, one.reason, one.tasks)
        if not self._validator.unworthy or any(_may_serve(worker) for worker in self._monitor.status().workers):
            self._deserted_since = None
            return
        now = time.monotonic()
        if found or self._deserted_since is None:
            self._deserted_since = now
            log.warning("all workers that are heard of are suspended: waits %.0f s for another one", self._deadline_s)
        elif now - self._deserted_since > self._deadline_s:
            self._end_deserted()

    def _end_deserted(self) -> NoReturn:
        last = self._validator.unworthy[-1]
        told = "all workers that are heard of are suspended for that"
        what = f"{last.reason}; {told}, and no other one came for {self._deadline_s:.0f} s"
        fix = "fix the workers, then run again: it continues, and its learner judges them anew"
        raise EchoQueueError(Problem(f"worker {last.name}", what, fix))

    def _skip(self, groups: list[Group]) -> None:
        """Has other prompts admitted in place of these groups, which teach nothing."""
        found = {group.task for group in groups} - self._skipped
        if found:
            self._queue.skip(len(found))
            self._skipped |= found

    def _pause(self, pause: Pause, groups: list[Group]) -> Pause:
        self.pending.extendleft(reversed(groups))
        return pause

    def _in_hand(self, version: int) -> UpdateGroups:
        """Takes pending groups until the update is full; more only if more would be too old for the update after it."""
        due = sum(version - group.oldest >= self._s for group in self.pending)
        update = UpdateGroups(self._size, self._refill)
        while self.pending and (update.lacking > 0 or len(update.groups) < due):
            update.add([self.pending.popleft()])
        return update

    def _await_publication(self, waited_s: float) -> None:
        """Raises `DeadlineError` if the first publication takes too long."""
        deadline_s = UNPUBLISHED_FACTOR * self._deadline_s
        if waited_s > deadline_s:
            what = f"its first version was not published within {deadline_s:.0f} s"
            raise DeadlineError(Problem("learner", what, "check that the object store accepts data; then restart it"))

    def _give_up(self, lacking: int) -> None:
        what = f"no group came for {self._deadline_s:.0f} s, {self._size - lacking} of {self._size} are in hand"
        missing = "; ".join(diagnosis.causes(diagnosis.snapshot(self._monitor), self._deadline_s))
        fix = "see docs/operations.md; a restart continues"
        if not self._queue.has_room(0):
            missing = f"Redis is at maxmemory, and has no room for the next {counted(self._size, 'group')}; {missing}"
            fix = "raise maxmemory, or lower queue.inline_max_bytes, learner.batch_groups or staleness.s"
        raise DeadlineError(Problem("learner", f"{what}: {missing}", fix))


def _may_serve(worker: WorkerStatus) -> bool:
    """Returns whether groups may come of this worker: it is heard of, and not suspended."""
    return worker.heartbeat is not None and not worker.suspended
