"""Loads staged weights into the engine, and decides what happens when a swap fails.

- An engine that may hold parts of two versions is quarantined: the worker generates nothing and holds no lease until
  weights have been loaded again from an anchor. If that fails as well, the worker ends with both errors in one.
"""

import logging
import threading
from collections.abc import Callable

from echo_queue.errors import EchoQueueError
from echo_queue.records import Published, Version
from workers.weights.swap import FailedSwap, WeightSwap
from workers.weights.weight_watcher import Staged, WeightWatcher

log = logging.getLogger(__name__)


class WeightUpdater:
    """Loads staged weights into the engine, in the caller's thread.

    `on_swap` is called with the weights that were loaded, and the seconds for which generation paused. `on_quarantine`
    is called when a swap has failed: the groups being generated must be given up.
    """

    def __init__(
        self,
        watcher: WeightWatcher,
        swap: WeightSwap,
        deadline_s: float,
        shutdown: threading.Event,
        *,
        on_swap: Callable[[Published, float], object],
        on_quarantine: Callable[[], object],
    ) -> None:
        self._watcher = watcher
        self._swap = swap
        self._deadline_s = deadline_s
        self._shutdown = shutdown
        self._on_swap = on_swap
        self._on_quarantine = on_quarantine

    def take(self) -> None:
        """Loads the newest weights if they are staged; never waits."""
        self._load(self._watcher.take())

    def refresh(self, needed: Version) -> None:
        """Loads weights that are `needed` or newer, waiting until they are staged. Raises `DeadlineError`."""
        self._load(self._watcher.wait_for(needed, self._deadline_s, self._shutdown))

    def _load(self, staged: Staged | None) -> None:
        """Loads staged weights. After a failed swap the engine is loaded from an anchor, or the error is raised."""
        if staged is None:
            return
        try:
            self._take(staged)
        except FailedSwap as error:
            log.error("quarantined, weights are fetched again from an anchor: %s", error)
            self._on_quarantine()
            self._rebuild(staged.version, error)

    def _rebuild(self, needed: Version, first: FailedSwap) -> None:
        rebuilt = self._watcher.rebuild(needed, self._deadline_s, self._shutdown)
        if rebuilt is None:
            return
        try:
            self._take(rebuilt)
        except FailedSwap as second:
            raise EchoQueueError(*second.problems, *first.problems) from second

    def _take(self, staged: Staged) -> None:
        with staged:
            self._swap.swap(staged.manifest, staged.tensors)
        self._on_swap(staged.published, self._swap.pause_s)
        log.info("serves version %s after a pause of %.0f ms", staged.version, 1000 * self._swap.pause_s)
