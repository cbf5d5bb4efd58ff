"""Brings newly published weights here while generation goes on, and holds the newest until it is taken.

- Weights are fetched and verified whole before anyone sees them; a fetch that fails is tried again, and until it
  succeeds the worker serves what it has.
- `wait_for` ends at its deadline with an error that names the version waited for and the last failure.
"""

import logging
import random
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from echo_queue.errors import DeadlineError, EchoQueueError, Problem
from echo_queue.queue import Queue
from echo_queue.records import Published, Version

if TYPE_CHECKING:
    from torch import Tensor

log = logging.getLogger(__name__)

LISTEN_S = 2.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 5.0


@dataclass(frozen=True, eq=False)
class Staged:
    """Verified weights that no engine has yet."""

    version: Version
    tensors: "Mapping[str, Tensor]"


class Follower(threading.Thread):
    """`fetch` reads and verifies published weights, and may raise anything."""

    def __init__(self, queue: Queue, fetch: "Callable[[Published], Mapping[str, Tensor]]", have: Version) -> None:
        super().__init__(name="follower", daemon=True)
        self._queue = queue
        self._fetch = fetch
        self._have = have
        self._staged: Staged | None = None
        self._trouble: Exception | None = None
        self._changed = threading.Condition()  # reentrant
        self._closed = False

    def run(self) -> None:
        cursor, pause_s = "0-0", FIRST_PAUSE_S
        while not self._closed:
            try:
                published = self._queue.published()
                if published is not None and published.version != self._have:
                    self._stage(published)
                cursor, pause_s = self._queue.wait(cursor, LISTEN_S, ("published", "resumed")), FIRST_PAUSE_S
            except Exception as error:
                if self._closed:
                    return
                self._report(error)
                time.sleep(pause_s * random.uniform(0.5, 1.0))
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    def take(self) -> Staged | None:
        """The newest weights fetched since the last call."""
        with self._changed:
            staged, self._staged = self._staged, None
            return staged

    def wait_for(self, needed: Version, deadline_s: float, leaving: threading.Event) -> Staged | None:
        """The first weights staged that are `needed` or newer; None once `leaving`. Raises `DeadlineError`.

        Newer is also any version of a later lineage: a learner that restarted may have gone back to a lower number.
        """
        give_up = time.monotonic() + deadline_s
        with self._changed:
            while not leaving.is_set():
                if self._staged is not None and self._staged.version >= needed:
                    return self.take()
                if time.monotonic() > give_up:
                    self._give_up(needed, deadline_s)
                self._changed.wait(timeout=0.2)
        return None

    def close(self) -> None:
        self._closed = True

    def _stage(self, published: Published) -> None:
        tensors = self._fetch(published)
        with self._changed:
            self._have = published.version
            self._staged, self._trouble = Staged(published.version, tensors), None
            self._changed.notify_all()

    def _report(self, error: Exception) -> None:
        """Once per kind of failure, not once per try."""
        with self._changed:
            if repr(error) != repr(self._trouble):
                what = str(error) if isinstance(error, EchoQueueError) else repr(error)
                log.warning("cannot follow the weights, serving the old ones: %s", what)
            self._trouble = error

    def _give_up(self, needed: Version, deadline_s: float) -> None:
        last = f"; the last failure: {self._trouble}" if self._trouble else ""
        what = f"version {needed} or newer did not arrive within {deadline_s:.0f} s{last}"
        mend = "see that the learner publishes and that the object store can be reached from here"
        raise DeadlineError(Problem("weights", what, mend))
