"""The base model on a worker's machine: a folder, a hub model, or the folder that the learner stored under `base/`."""

import logging
import threading
from pathlib import Path

from echo_queue.config import Config
from echo_queue.connections.hub import base_folder
from echo_queue.errors import Problem
from echo_queue.storage.object_store import MissingObject, ObjectStore
from workers.polling import poll

log = logging.getLogger(__name__)

PREFIX = "base"
COPY = "base-copy"
"""The folder in the run's directory into which the learner's folder is downloaded, if it has another name."""
LONGEST_PAUSE_S = 2.0


def find(config: Config, store: ObjectStore, shutdown: threading.Event) -> str:
    """Returns a folder that can be opened here; waits for the learner's upload if there is none.

    A name such as `models/mine` may be a folder of the learner's machine or a hub model: if the learner has stored a
    folder, it is that one. Returns early once `shutdown` is set. Raises `DeadlineError` after
    `queue.stall_deadline_s`.
    """
    named, made_here = Path(config.base_model), config.model.base == "init"
    folder = named if made_here else config.run.dir / COPY
    for here in (named, folder):
        if here.is_dir():
            return str(here)

    def look() -> str | None:
        try:
            store.download_folder(PREFIX, folder)
        except MissingObject:
            return None if made_here else _from_hub(config)
        return str(folder)

    deadline_s = config.queue.stall_deadline_s
    what = f"the learner stored no base model under {store.prefix}{PREFIX}/ within {deadline_s:.0f} s"
    fix = "start the learner, or run `echo-queue init-model` here"
    if not made_here:
        what = f"{config.model.base} is no folder here and no model that the hub gives, and {what}"
        fix = "start the learner, which stores its folder; this worker's log says what the hub answered"
    late = Problem("model.base", what, fix)
    found = poll(look, shutdown, deadline_s=deadline_s, longest_pause_s=LONGEST_PAUSE_S, late=late)
    return found or config.base_model


def _from_hub(config: Config) -> str | None:
    """Returns the folder of a hub model; None if neither the hub nor its cache on this machine has it."""
    try:
        return base_folder(config)
    except OSError as error:
        log.info("%s is not taken for a hub model: %s", config.model.base, error)
        return None
