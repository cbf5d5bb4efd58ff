"""Brings the queue into agreement with the checkpoints, which are the last authority on what is trained.

- The groups in a checkpoint of the surviving history count as trained, whatever the queue has forgotten.
- Groups that only an abandoned checkpoint holds (after a rewind, or because its tensors were damaged) go back to the
  backlog: no surviving weights were trained on them.
- The ids in a checkpoint mean the prompts whose digests it carries. The queue learns these digests in the move that
  begins the lineage, so that no other prompts can count as trained under an old name.
- Each checkpoint is one move, which also sets the checkpoint at which the queue stands: a crash in between loses
  nothing.
"""

import logging

from echo_queue import weights
from echo_queue.errors import Problem, ServiceError
from echo_queue.queue import LearnerQueue, Resumed, RunRules
from echo_queue.records import BASE, Version
from echo_queue.storage.object_store import MissingObject, ObjectStore
from learner.recovery import checkpoint
from learner.recovery.archive import ManifestReader
from learner.recovery.manifest import NO_SETS, CheckpointManifest

log = logging.getLogger(__name__)

NO_CHECKPOINT = ""
"""The name by which the queue says that it stands at no checkpoint."""


def resume(
    queue: LearnerQueue, store: ObjectStore, rules: RunRules, begin: CheckpointManifest | None, window: float = 0.0
) -> CheckpointManifest:
    """Begins a new lineage at a checkpoint (None: at the base model) and brings the queue into agreement with it.

    `rules`: those of the run from now on. `window`: w at the base model, in batches. Returns the lineage's first
    checkpoint, which marks where it began. No checkpoint that an older learner may still save after hanging is then
    taken for the newest.
    """
    begun_at = Version(begin.lineage, begin.version) if begin else BASE
    resumed = queue.resume(rules, begun_at, newest_lineage(store), begin.sets if begin else NO_SETS)
    newest = checkpoint.mark(store, resumed.lineage, begin, window)
    to_undo, to_commit = apart(store, resumed, newest)
    for manifest in to_undo:
        undone = queue.uncommit(manifest.name, manifest.parent or NO_CHECKPOINT, manifest.trained)
        log.warning("checkpoint %s was abandoned: %d groups will be trained again", manifest.name, undone)
    for manifest in to_commit:
        queue.commit(manifest.name, manifest.trained)
    return newest


def apart(
    store: ObjectStore, resumed: Resumed, newest: CheckpointManifest
) -> tuple[list[CheckpointManifest], list[CheckpointManifest]]:
    """Returns the path from where the queue stands to `newest`: checkpoints to undo, newest first, then checkpoints to
    commit, oldest first.

    A checkpoint's name is greater than its ancestors' names, so the greater of two is never an ancestor of the other.
    Raises `ServiceError` if the manifest at which the queue stands is gone.
    """
    reader = ManifestReader(store)
    here = _named(reader, resumed.committed)
    there: CheckpointManifest | None = newest
    to_undo: list[CheckpointManifest] = []
    to_commit: list[CheckpointManifest] = []
    while (here and here.name) != (there and there.name):
        if here is not None and (there is None or here.name > there.name):
            to_undo.append(here)
            here = _named(reader, here.parent)
        elif there is not None:
            to_commit.append(there)
            there = _named(reader, there.parent)
    return to_undo, to_commit[::-1]


def newest_lineage(store: ObjectStore) -> int:
    """Returns the greatest lineage in the store, so that no number is given twice even if Redis forgot it."""
    return max({0} | weights.lineages(store) | checkpoint.lineages(store))


def _named(reader: ManifestReader, name: str | None) -> CheckpointManifest | None:
    if name is None:
        return None
    try:
        return reader.read(name)
    except (MissingObject, ValueError, TypeError) as error:
        what = f"cannot be read ({error}), and the queue counts what it holds as trained"
        raise ServiceError(Problem(f"checkpoint {name}", what, "restore that object in the store")) from None
