"""The queue follows the checkpoints, which are the last authority on what is trained.

- What a checkpoint of the surviving history holds counts as trained, whatever the queue has forgotten.
- What only a checkpoint holds that was left behind (by a rewind, or because its tensors were damaged) goes back to the
  backlog: it is trained in no weights that survive.
- One move per checkpoint, each with the name that the queue then stands at: a crash in between loses nothing.
"""

import logging

from echo_queue import weights
from echo_queue.errors import Problem, ServiceError
from echo_queue.queue import LearnerQueue, Resumed
from echo_queue.records import BASE, Version
from echo_queue.storage.object_store import MissingObject, ObjectStore
from learner.recovery import checkpoint
from learner.recovery.checkpoint import Manifest

log = logging.getLogger(__name__)

NONE = ""
"""The name under which the queue stands at no checkpoint."""


def resume(queue: LearnerQueue, store: ObjectStore, begin: Manifest | None) -> tuple[int, Manifest | None]:
    """A new lineage that begins at a checkpoint (None: at the base model), with the queue in agreement.

    Returns its number and its first checkpoint, which marks where it began: none that an older learner, which hung,
    may still save is taken for the newest.
    """
    resumed = queue.resume(Version(begin.lineage, begin.version) if begin else BASE, newest_lineage(store))
    newest = checkpoint.mark(store, resumed.lineage, begin) if begin else None
    left_behind, ahead = apart(store, resumed, newest)
    for manifest in left_behind:
        undone = queue.uncommit(manifest.name, manifest.parent or NONE, manifest.trained)
        log.warning("checkpoint %s was left behind: %d groups are to be trained again", manifest.name, undone)
    for manifest in ahead:
        queue.commit(manifest.name, manifest.trained)
    return resumed.lineage, newest


def apart(store: ObjectStore, resumed: Resumed, newest: Manifest | None) -> tuple[list[Manifest], list[Manifest]]:
    """From where the queue stands to `newest`: checkpoints to undo, newest first; then those to commit, oldest first.

    A checkpoint's name is greater than those of its ancestors, so the greater of two is never the other's ancestor.
    Raises `ServiceError` if the manifest at which the queue stands is gone.
    """
    here, there = _named(store, resumed.committed), newest
    left_behind: list[Manifest] = []
    ahead: list[Manifest] = []
    while (here and here.name) != (there and there.name):
        if here is not None and (there is None or here.name > there.name):
            left_behind.append(here)
            here = _named(store, here.parent)
        elif there is not None:
            ahead.append(there)
            there = _named(store, there.parent)
    return left_behind, ahead[::-1]


def newest_lineage(store: ObjectStore) -> int:
    """The greatest lineage that left anything in the store, so that none is given twice even if Redis forgot it."""
    return max({0} | weights.lineages(store) | checkpoint.lineages(store))


def _named(store: ObjectStore, name: str | None) -> Manifest | None:
    if name is None:
        return None
    try:
        return checkpoint.read(store, name)
    except (MissingObject, ValueError, TypeError) as error:
        what = f"cannot be read ({error}), and the queue counts what it holds as trained"
        raise ServiceError(Problem(f"checkpoint {name}", what, "restore that object in the store")) from None
