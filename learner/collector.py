"""Brings together the groups of the next update.

- What was in the learner's hands before a restart comes first, in its old order, and never later than S allows.
- No group comes through that `echo_queue.records.validation` refuses: the queue buries it with the reason and its
  sender. Many in a row from one worker are an error with its name.
- Waiting ends at a deadline with an error that says who is missing.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from echo_queue.config import Config
from echo_queue.errors import DeadlineError, Problem
from echo_queue.queue import LearnerQueue, Monitor, diagnosis
from echo_queue.records import Group, Version
from echo_queue.records.validation import GroupValidator

LISTEN_S = 1.0
ARRIVALS = ("completed", "declared", "submitted", "buried")
"""Events after which a drain may give more than the one before."""


class Batch(NamedTuple):
    """The groups of one update. `starved_s`: how long too few were there; `ready`: how many stood ready after."""

    groups: list[Group]
    starved_s: float
    ready: int


class BatchCollector:
    """For the learner that begins at `version` of its lineage, by which `queue` stands.

    `validator`: the queue's, which learns what is handed out. `check` is called while waiting and may raise.
    """

    def __init__(
        self,
        config: Config,
        queue: LearnerQueue,
        monitor: Monitor,
        validator: GroupValidator,
        *,
        version: Version,
        check: Callable[[], None],
    ) -> None:
        self._vetting, self._monitor, self._queue = validator, monitor, queue
        self.handed_out(version)
        self.pending = deque(queue.pending())
        self._check = check
        self._size = config.learner.batch_groups
        self._s = config.staleness.s
        self._deadline_s = config.queue.stall_deadline_s
        self._cursor = "0-0"

    def handed_out(self, version: Version) -> None:
        """From now on workers may have these weights."""
        self._vetting.newest = version

    def gather(self, version: int, leaving: threading.Event) -> Batch:
        """B groups for the update after `version`; fewer only if they are the last ones, or when leaving."""
        groups = self._in_hand(version)
        heard, short_since, ready = time.monotonic(), None, 0
        while len(groups) < self._size and not leaving.is_set():
            self._check()
            self._vetting.complain()
            drained = self._queue.drain(self._size - len(groups))
            groups += drained.groups
            ready, now = drained.ready, time.monotonic()
            if len(groups) >= self._size or drained.exhausted:
                break
            short_since = short_since or now
            heard = now if drained.groups else heard
            if now - heard > self._deadline_s:
                self._give_up(len(groups))
            self._cursor = self._queue.wait_for_event(self._cursor, LISTEN_S, ARRIVALS)
        return Batch(groups, time.monotonic() - short_since if short_since else 0.0, ready)

    def _in_hand(self, version: int) -> list[Group]:
        """At most B of what is pending; more only where more would be too old for the update after this one."""
        due = sum(version - group.oldest >= self._s for group in self.pending)
        return [self.pending.popleft() for _ in range(min(max(self._size, due), len(self.pending)))]

    def _give_up(self, have: int) -> None:
        what = f"no group came for {self._deadline_s:.0f} s, {have} of {self._size} are in hand"
        missing = "; ".join(diagnosis.who(diagnosis.look(self._monitor), self._deadline_s))
        raise DeadlineError(Problem("learner", f"{what}: {missing}", "see docs/operations.md; a restart continues"))
