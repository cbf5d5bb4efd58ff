"""The base model on a worker's machine: its own folder, a hub name, or what the learner stored under `base/`."""

import random
import threading
import time
from pathlib import Path

from echo_queue.config import Config
from echo_queue.errors import DeadlineError, Problem
from echo_queue.storage.object_store import MissingObject, ObjectStore

PREFIX = "base"
LONGEST_PAUSE_S = 2.0


def find(config: Config, store: ObjectStore, leaving: threading.Event) -> str:
    """A folder or hub name that opens here; waits for the learner's upload if there is none yet.

    Raises `DeadlineError` after `queue.stall_deadline_s`.
    """
    folder = Path(config.base_model)
    if config.model.base != "init" or folder.is_dir():
        return config.base_model
    give_up = time.monotonic() + config.queue.stall_deadline_s
    while not leaving.is_set():
        try:
            store.download_folder(PREFIX, folder)
            break
        except MissingObject:
            if time.monotonic() > give_up:
                waited = f"within {config.queue.stall_deadline_s:.0f} s"
                what = f"the learner stored none under {store.prefix}{PREFIX}/ {waited}"
                fix = "start the learner, or run `echo-queue init-model` here"
                raise DeadlineError(Problem("model.base", what, fix)) from None
        leaving.wait(LONGEST_PAUSE_S * random.uniform(0.5, 1.0))
    return config.base_model
