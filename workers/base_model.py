"""The base model on a worker's machine: a folder, a hub name, or the folder that the learner stored under `base/`."""

import random
import threading
import time
from pathlib import Path

from echo_queue.config import Config
from echo_queue.errors import DeadlineError, Problem
from echo_queue.storage.object_store import MissingObject, ObjectStore

PREFIX = "base"
LONGEST_PAUSE_S = 2.0


def find(config: Config, store: ObjectStore, shutdown: threading.Event) -> str:
    """Returns a folder or hub name that can be opened here; waits for the learner's upload if that is missing.

    Returns early once `shutdown` is set. Raises `DeadlineError` after `queue.stall_deadline_s`.
    """
    folder = Path(config.base_model)
    if config.model.base != "init" or folder.is_dir():
        return config.base_model
    give_up = time.monotonic() + config.queue.stall_deadline_s
    while not shutdown.is_set():
        try:
            store.download_folder(PREFIX, folder)
            break
        except MissingObject:
            if time.monotonic() > give_up:
                waited = f"within {config.queue.stall_deadline_s:.0f} s"
                what = f"the learner stored no base model under {store.prefix}{PREFIX}/ {waited}"
                fix = "start the learner, or run `echo-queue init-model` here"
                raise DeadlineError(Problem("model.base", what, fix)) from None
        shutdown.wait(LONGEST_PAUSE_S * random.uniform(0.5, 1.0))
    return config.base_model
