"""The first part of a learner's life, at rank 0: it checks the store, creates the run and shares the base model.

From the run's creation on it shows that it lives.
"""

import logging
from contextlib import ExitStack
from pathlib import Path

from echo_queue.config import Config
from echo_queue.connections import store_check
from echo_queue.connections.endpoints import EMBEDDED
from echo_queue.connections.storage.object_store import INDEX, ObjectStore
from echo_queue.models.hub import BASE_FOLDER
from echo_queue.queue import Caller, Operator, RunRules
from learner.lease_sweeper import LeaseSweeper

log = logging.getLogger(__name__)

READY, FINISHED = b"ready", b"finished"


def begin(config: Config, store: ObjectStore, loading: ExitStack) -> bytes:
    """Checks the store, creates the run if need be and shares the base model. Returns `FINISHED` for a run that is.

    Until `loading` is closed, a thread shows that the learner lives, however long its models take.
    """
    if config.store.url != EMBEDDED:
        store_check.check(store)
    operator = Operator(connect(config))
    operator.configure(RunRules.of(config))
    status, limit = operator.status(), config.learner.max_updates
    if status.ended_before(limit):
        number = status.learner.number
        log.info("the run had ended at update %d by learner.max_updates; it goes on to %s", number, limit or "its end")
    elif status.finished:
        log.info("run %s is finished; its model is %s", config.run.name, config.run.dir / "model")
        return FINISHED
    sweeper = LeaseSweeper(connect(config), config.queue.lease_s)
    sweeper.start()
    loading.callback(sweeper.close)
    _share_base(config, store)
    return READY


def connect(config: Config) -> Caller:
    """Returns a connection to Redis as the learner."""
    return Caller.connect(config, "learner", config.queue.stall_deadline_s)


def _share_base(config: Config, store: ObjectStore) -> None:
    """Uploads a base model's folder once, for workers on other machines; a hub model they download themselves."""
    folder = Path(config.base_model)
    if folder.is_dir() and not store.exists(f"{BASE_FOLDER}/{INDEX}"):
        store.upload_folder(folder, BASE_FOLDER)
