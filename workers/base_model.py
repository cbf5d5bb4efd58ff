"""The base model on a worker's machine: a folder, a hub model, or the folder that the learner stored under `base/`."""

import logging
import threading
import time
from pathlib import Path

from echo_queue.config import Config
from echo_queue.connections.storage.object_store import MissingObject, ObjectStore
from echo_queue.errors import Problem
from echo_queue.models.hub import BASE_FOLDER, base_folder, reachable
from workers.polling import poll

log = logging.getLogger(__name__)

COPY = "base-copy"
"""The folder in the run's directory into which the learner's folder is downloaded, if it has another name."""
LONGEST_PAUSE_S = 2.0
HUB_PAUSE_S, LONGEST_HUB_PAUSE_S = 2.0, 60.0
"""The pause after the hub's first refusal, which doubles up to the longest one. The store is looked at meanwhile."""


def find(config: Config, store: ObjectStore, shutdown: threading.Event) -> str:
    """Returns a folder that can be opened here; waits for the learner's upload if there is none.

    A name such as `models/mine` may be a folder of the learner's machine or a hub model: if the learner has stored a
    folder, it is that one. Returns early once `shutdown` is set. Raises `DeadlineError` after
    `queue.stall_deadline_s`.
    """
    named, made_here = Path(config.base_model), config.model.base == "init"
    folder = named if made_here else config.run.dir / COPY
    for here in (named, folder):
        if reachable(here / "config.json") and here.is_dir():
            return str(here)

    deadline_s = config.queue.stall_deadline_s
    hub = HubModel(config, deadline_s)

    def look() -> str | None:
        try:
            store.download_folder(BASE_FOLDER, folder)
        except MissingObject:
            return hub.look()
        return str(folder)

    what = f"the learner stored no base model under {store.prefix}{BASE_FOLDER}/ within {deadline_s:.0f} s"
    fix = "start the learner, or run `echo-queue init-model` here"
    if not made_here:
        what = f"{config.model.base} is no folder here and no model that the hub gives, and {what}"
        fix = "start the learner, which stores its folder; this worker's log says what the hub answered"
    late = Problem("model.base", what, fix)
    found = poll(look, shutdown, deadline_s=deadline_s, longest_pause_s=LONGEST_PAUSE_S, late=late)
    return found or config.base_model


class HubModel:
    """The hub's model of the configured name, if there is one.

    The hub is asked ever less often, and the log says once what the worker waits for.
    """

    def __init__(self, config: Config, deadline_s: float) -> None:
        self._config = config
        self._waits = f"waits for the learner to store the base model, for {deadline_s:,.0f} s at most"
        self._refusals = 0
        self._next_s = 0.0

    def look(self) -> str | None:
        """Returns the folder of the hub's model; None if the hub has none, or is not asked now."""
        if self._config.model.base == "init":
            self._note("it is made there")
        elif time.monotonic() >= self._next_s:
            try:
                return base_folder(self._config)
            except OSError as error:
                self._note(f"it is no hub model: {error}")
                pause_s = HUB_PAUSE_S * 2.0 ** min(self._refusals - 1, 32)
                self._next_s = time.monotonic() + min(pause_s, LONGEST_HUB_PAUSE_S)
        return None

    def _note(self, why: str) -> None:
        self._refusals += 1
        if self._refusals == 1:
            log.info("%s; %s", self._waits, why)
