"""The base model on a worker's machine: a folder, a hub name, or the folder that the learner stored under `base/`."""

import threading
from pathlib import Path

from echo_queue.config import Config
from echo_queue.errors import Problem
from echo_queue.storage.object_store import MissingObject, ObjectStore
from workers.polling import poll

PREFIX = "base"
LONGEST_PAUSE_S = 2.0


def find(config: Config, store: ObjectStore, shutdown: threading.Event) -> str:
    """Returns a folder or hub name that can be opened here; waits for the learner's upload if that is missing.

    Returns early once `shutdown` is set. Raises `DeadlineError` after `queue.stall_deadline_s`.
    """
    folder = Path(config.base_model)
    if config.model.base != "init" or folder.is_dir():
        return config.base_model

    def download() -> str | None:
        try:
            store.download_folder(PREFIX, folder)
        except MissingObject:
            return None
        return config.base_model

    deadline_s = config.queue.stall_deadline_s
    what = f"the learner stored no base model under {store.prefix}{PREFIX}/ within {deadline_s:.0f} s"
    late = Problem("model.base", what, "start the learner, or run `echo-queue init-model` here")
    poll(download, shutdown, deadline_s=deadline_s, longest_pause_s=LONGEST_PAUSE_S, late=late)
    return config.base_model
