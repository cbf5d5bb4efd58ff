"""Asks whether the object store answers, for a view of a run that stands still."""

import time
from collections.abc import Callable

from echo_queue.config import Config
from echo_queue.connections.endpoints import store_endpoint
from echo_queue.errors import EchoQueueError
from echo_queue.storage.errors import Unreachable
from echo_queue.storage.object_store import ObjectStore

EVERY_S = 5.0


class StoreProbe:
    """The store as the read-only user sees it. Without keys for it nothing is known, and nothing said."""

    def __init__(self, config: Config, clock: Callable[[], float] = time.monotonic) -> None:
        self._config = config
        self._clock = clock
        self._store: ObjectStore | None = None
        self._asked_at = -EVERY_S
        self._said = ""

    def trouble(self) -> str:
        """Returns why the store does not answer; empty if it does. It is asked every `EVERY_S` at most."""
        if self._clock() - self._asked_at >= EVERY_S:
            self._said = self._ask()
            self._asked_at = self._clock()
        return self._said

    def _ask(self) -> str:
        try:
            self._store = self._store or ObjectStore(store_endpoint(self._config, "monitor"), self._config.run.name)
            self._store.check(deadline_s=0)
        except Unreachable as error:
            self._store = None  # an embedded one may start again at another port
            return f"the object store does not answer: {error.problems[0].what}"
        except EchoQueueError:
            pass
        return ""
