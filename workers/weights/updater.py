"""When and how this worker takes new weights.

- An engine that may hold parts of two versions is quarantined: the worker generates nothing and holds no lease until it
  has loaded weights anew from an anchor; if that fails as well, it is one clear error.
- Weights of another lineage than before: what older ones generated may have been abandoned.
"""

import logging
import threading
from collections.abc import Callable

from echo_queue.config import Config
from echo_queue.errors import EchoQueueError
from echo_queue.queue import PublishedWeights
from echo_queue.records import Version
from workers.lease_keeper import LeaseKeeper
from workers.weights.swap import Spoilt, WeightSwap
from workers.weights.watcher import Staged, WeightWatcher

log = logging.getLogger(__name__)


class WeightUpdater:
    """`hand_back`: what is under way is given up, since the engine is spoilt."""

    def __init__(
        self,
        config: Config,
        follower: WeightWatcher,
        gate: WeightSwap,
        *,
        lease_keeper: LeaseKeeper,
        leaving: threading.Event,
        hand_back: Callable[[], None],
    ) -> None:
        self._deadline_s = config.queue.stall_deadline_s
        self._follower = follower
        self._gate = gate
        self._lease_keeper = lease_keeper
        self._leaving = leaving
        self._hand_back = hand_back

    @property
    def waits(self) -> bool:
        """Newer weights are staged."""
        return self._follower.staged

    def check(self) -> None:
        """Raises why no weights will ever follow, if that is so."""
        self._follower.check()

    def catch_up(self, queue: PublishedWeights, serving: Version) -> None:
        """Starts with the newest weights there are."""
        published = queue.published()
        if published is not None and published.version != serving:
            self.refresh(published.version)

    def take(self) -> None:
        """The newest weights, if they are staged; never waits."""
        self._load(self._follower.take())

    def refresh(self, needed: Version) -> None:
        """Loads weights that are `needed` or newer. Raises `DeadlineError`."""
        self._lease_keeper.state = "fetching"
        self._load(self._follower.wait_for(needed, self._deadline_s, self._leaving))

    def _load(self, staged: Staged | None) -> None:
        """Through the gate; an engine that is spoilt there is built anew, or ends this worker."""
        if staged is None:
            return
        try:
            self._swap(staged)
        except Spoilt as error:
            log.error("quarantined, weights are built anew from an anchor: %s", error)
            self._lease_keeper.state = "quarantined"
            self._hand_back()
            self._rebuild(staged.version, error)

    def _rebuild(self, needed: Version, first: Spoilt) -> None:
        anew = self._follower.rebuild(needed, self._deadline_s, self._leaving)
        if anew is None:
            return
        try:
            self._swap(anew)
        except Spoilt as second:
            raise EchoQueueError(*second.problems, *first.problems) from second

    def _swap(self, staged: Staged) -> None:
        with staged:
            self._gate.swap(staged.manifest, staged.tensors)
        self._lease_keeper.serve(staged.published, self._gate.pause_s)
        log.info("serves version %s after a pause of %.0f ms", staged.version, 1000 * self._gate.pause_s)
