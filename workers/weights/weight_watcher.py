"""Watches for newly published weights, stages them while generation goes on, and holds the newest until it is taken.

- Weights are fetched, verified and staged whole before any other thread sees them. A failure is tried again, and until
  a try succeeds the worker serves the weights that it has.
- `take` never waits for weights that are being staged. After a `take` that came too early, the version staged next
  stays until it is taken.
- A pointer to an older version than one that was staged or served is not followed: Redis was set back.
- `wait_for` ends at its deadline with an error that names the version it waited for and the last failure.
- Announced parts of the next version are prefetched between versions, while the learner uploads the others.
- A run whose key has changed, or whose adapters belong to another base model, ends the worker: `check` raises the error
  in the main thread.
"""

import logging
import random
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from echo_queue.errors import DeadlineError, EchoQueueError, Problem
from echo_queue.queue import Announced, WorkerQueue
from echo_queue.records import Published, Version
from echo_queue.weights.manifest import Manifest
from echo_queue.weights.reader import refuse_older
from workers.weights.fetch import FetchedVersion, VersionFetcher
from workers.weights.key_pinning import KeyChanged
from workers.weights.lora import OtherBase

if TYPE_CHECKING:
    from torch import Tensor

log = logging.getLogger(__name__)

LISTEN_S = 5.0
"""The longest wait for an event, after which the watcher looks by itself."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 5.0
FATAL = (KeyChanged, OtherBase)
"""Errors after which trying again is of no use."""


@dataclass(frozen=True, eq=False)
class Staged:
    """Verified weights that no engine has loaded yet. They stay unchanged until the end of its `with` block.

    `manifest` describes `tensors`, which an engine is to serve (`Stage.served`).
    """

    published: Published
    manifest: Manifest
    tensors: "Mapping[str, Tensor]"
    release: Callable[[], None]

    @property
    def version(self) -> Version:
        return self.published.version

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.release()


class WeightWatcher(threading.Thread):
    """The thread that fetches and stages new weights. `have`: the version already served, which is not fetched again.

    `on_announced` is called in this thread with the queue's announcement, if any; it must return at once. The main
    thread calls all public methods but `run`.
    """

    def __init__(
        self,
        queue: WorkerQueue,
        fetcher: VersionFetcher,
        have: Version | None,
        on_announced: Callable[[Announced | None], object] = lambda announced: None,
    ) -> None:
        super().__init__(name="weight watcher", daemon=True)
        self._queue = queue
        self._fetcher = fetcher
        self._stage = fetcher.stage
        self._have = self._newest = have
        self._on_announced = on_announced
        self._staged: FetchedVersion | None = None
        self._needed: Version | None = None
        self._missed = False
        self._failure: Exception | None = None
        self._changed = threading.Condition()  # reentrant
        self._closed = False

    def run(self) -> None:
        cursor, pause_s = "0-0", FIRST_PAUSE_S
        while not self._closed:
            try:
                latest_weights = self._queue.latest_weights()
                if latest_weights.published is not None:
                    self._follow(latest_weights.published)
                self._on_announced(latest_weights.announced)
                cursor, pause_s = self._queue.wait_for_weights(cursor, LISTEN_S), FIRST_PAUSE_S
            except Exception as error:
                if self._closed:
                    return
                self._report(error)
                if isinstance(error, FATAL):
                    return
                time.sleep(pause_s * random.uniform(0.5, 1.0))
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    def check(self) -> None:
        """Raises `KeyChanged` or `OtherBase` if no weights will ever be staged again."""
        if isinstance(self._failure, FATAL):
            raise self._failure

    @property
    def staged(self) -> Version | None:
        """The version whose weights are staged and wait to be taken, if there is one."""
        return None if (staged := self._staged) is None else staged.published.version

    def take(self) -> Staged | None:
        """Returns the newest weights staged since the last call, if any. The caller leaves their `with` block soon."""
        if not self._stage.hold():
            self._missed = True
            return None
        with self._changed:
            fetched, self._staged, self._missed = self._staged, None, False
            self._changed.notify_all()
        if fetched is None:
            self._stage.release()
            return None
        manifest = self._stage.served_manifest(fetched.manifest)
        return Staged(fetched.published, manifest, self._stage.served, self._stage.release)

    def wait_for(self, needed: Version, deadline_s: float, shutdown: threading.Event) -> Staged | None:
        """Waits for staged weights that are `needed` or newer, and takes them; returns None once `shutdown` is set.

        Any version of a later lineage is newer: a learner that restarted may have gone back to a lower number. Raises
        `DeadlineError`.
        """
        give_up = time.monotonic() + deadline_s
        with self._changed:
            self._needed = needed
            try:
                while not shutdown.is_set():
                    self.check()
                    if self._fits(needed) and (staged := self.take()):
                        return staged
                    if time.monotonic() > give_up:
                        self._give_up(needed, deadline_s)
                    self._changed.wait(timeout=0.2)
            finally:
                self._needed = None
        return None

    def rebuild(self, needed: Version, deadline_s: float, shutdown: threading.Event) -> Staged | None:
        """Forgets the staged weights, then waits as `wait_for` does, for weights that are built from an anchor."""
        give_up = time.monotonic() + deadline_s
        if not self._stage.wait_turn(lambda: not shutdown.is_set() and time.monotonic() < give_up):
            if not shutdown.is_set():
                self._give_up(needed, deadline_s)
            return None
        with self._changed:
            self._stage.forget()
            self._staged = self._have = None
        self._stage.release()
        return self.wait_for(needed, deadline_s, shutdown)

    def close(self) -> None:
        self._closed = True

    def _follow(self, published: Published) -> None:
        refuse_older(published.version, self._newest)
        if published.version != self._have:
            self._stage_version(published)

    def _stage_version(self, published: Published) -> None:
        fetched = self._fetcher.fetch(published)
        with self._changed:
            while not self._closed and self._must_stay():
                self._changed.wait(timeout=0.2)
        if not self._stage.wait_turn(lambda: not self._closed):
            return
        try:
            with self._changed:
                self._staged = None
            self._fetcher.apply(fetched)
            with self._changed:
                self._have = self._newest = published.version
                self._staged, self._failure = fetched, None
        finally:
            self._stage.release()
        with self._changed:
            self._changed.notify_all()

    def _must_stay(self) -> bool:
        """Returns whether a `take` came while the staged version was being staged, and that version satisfies it."""
        return self._missed and self._staged is not None and (self._needed is None or self._fits(self._needed))

    def _fits(self, needed: Version) -> bool:
        return self._staged is not None and self._staged.published.version >= needed

    def _report(self, error: Exception) -> None:
        """Warns once for each kind of failure, not once for each try."""
        with self._changed:
            if repr(error) != repr(self._failure):
                what = str(error) if isinstance(error, EchoQueueError) else repr(error)
                log.warning("no new weights, serving the old ones: %s", what)
            self._failure = error

    def _give_up(self, needed: Version, deadline_s: float) -> None:
        last = f"; the last failure: {self._failure}" if self._failure else ""
        what = f"version {needed} or newer did not arrive within {deadline_s:.0f} s{last}"
        fix = "check that the learner publishes and that the object store can be reached from here"
        raise DeadlineError(Problem("weights", what, fix))
