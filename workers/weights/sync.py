"""Keeps an engine's weights in step with those that the learner publishes.

- The weight watcher's thread fetches, verifies and stages published versions while the engine generates. Only a version
  that is whole and signed with the pinned key is ever staged.
- The engine changes only inside `take`, `refresh` and `catch_up`, which the worker's main thread calls between steps.
"""

import threading
from collections.abc import Callable, Mapping
from typing import Self

from echo_queue.config import Config
from echo_queue.connections.storage.object_store import ObjectStore
from echo_queue.queue import Caller, TrustedWeights, WorkerQueue
from echo_queue.records import Published, Version
from workers.engines import Engine
from workers.weights.fetch import VersionFetcher
from workers.weights.key_pinning import PinnedKey, pin
from workers.weights.lora import LoraStage
from workers.weights.prefetch import Prefetcher
from workers.weights.registry import open_transport
from workers.weights.staging import Stage
from workers.weights.swap import WeightSwap
from workers.weights.transport import Site, WeightTransport
from workers.weights.updater import WeightUpdater
from workers.weights.weight_watcher import WeightWatcher


class WeightSync:
    """Everything that the rollout loop needs of weights: `open` it, `start` it, and `close` it before the engine.

    The main thread uses it; any thread may call `retire`.
    """

    def __init__(
        self,
        queue: WorkerQueue,
        store: ObjectStore,
        engine: Engine,
        pinned: PinnedKey,
        transport: WeightTransport,
        *,
        adapters: bool,
        deadline_s: float,
        shutdown: threading.Event,
    ) -> None:
        """`adapters`: whether the run publishes LoRA adapters, not all weights."""
        stage = LoraStage(engine.weight) if adapters else Stage()
        base = None if adapters else engine.weight
        fetcher = VersionFetcher(store, pinned, stage, transport, deadline_s, base=base)
        prefetcher = Prefetcher(queue, pinned.verifier, stage, transport, deadline_s)
        self._queue = queue
        self._engine = engine
        self._transport = transport
        self._watcher = WeightWatcher(queue, fetcher, engine.version, prefetcher.update)
        self._swap = WeightSwap(engine)
        self._deadline_s = deadline_s
        self._shutdown = shutdown

    @classmethod
    def open(
        cls,
        config: Config,
        caller: Caller,
        queue: WorkerQueue,
        store: ObjectStore,
        *,
        worker: str,
        engine: Engine,
        shutdown: threading.Event,
    ) -> Self | None:
        """Waits for the learner to name its key, and opens the transport; returns None once `shutdown` is set.

        Raises `DeadlineError`, or `KeyChanged`.
        """
        pinned = pin(config, TrustedWeights(caller), shutdown)
        if pinned is None or shutdown.is_set():
            return None
        transport = open_transport(Site(config, caller, store, worker, pinned.keys.token_secret))
        adapters, deadline_s = config.model.lora.rank > 0, config.queue.stall_deadline_s
        return cls(queue, store, engine, pinned, transport, adapters=adapters, deadline_s=deadline_s, shutdown=shutdown)

    def start(self, *, on_swap: Callable[[Published, float], object], on_quarantine: Callable[[], object]) -> None:
        """Begins to stage published versions.

        `on_swap` is called with the weights that were loaded, and the seconds for which generation paused.
        `on_quarantine` is called when a swap has failed, before the engine is loaded again: the groups that it was
        generating must be given up. Both run in the main thread, inside `take`, `refresh` or `catch_up`.
        """
        self._updater = WeightUpdater(
            self._watcher,
            self._swap,
            self._deadline_s,
            self._shutdown,
            on_swap=on_swap,
            on_quarantine=on_quarantine,
        )
        self._watcher.start()

    @property
    def waiting(self) -> Version | None:
        """The version whose weights are staged, newer than the engine's, if there is one."""
        return self._watcher.staged

    @property
    def fetched(self) -> Mapping[str, int]:
        """Bytes fetched since the start, by source: "store", and the sources that the transport names."""
        return self._transport.fetched

    def check(self) -> None:
        """Raises the error after which this worker can get no weights any more, if there is one."""
        self._watcher.check()

    def catch_up(self) -> None:
        """Loads the newest published weights, waiting until they are staged. Raises `DeadlineError`."""
        published = self._queue.published()
        if published is not None and published.version > self._engine.version:
            self.refresh(published.version)

    def take(self) -> None:
        """Loads the newest weights if they are staged; never waits."""
        self._updater.take()

    def refresh(self, needed: Version) -> None:
        """Loads weights that are `needed` or newer, waiting until they are staged. Raises `DeadlineError`."""
        self._updater.refresh(needed)

    def retire(self) -> None:
        """Tells other workers not to depend on this one, which will leave. Any thread may call it."""
        self._transport.retire()

    def close(self) -> None:
        self._watcher.close()
        self._transport.close()
