"""Brings the queue into agreement with the checkpoints, which are the last authority on what is trained.

- The groups in a checkpoint of the surviving history count as trained, whatever the queue has forgotten.
- Groups that only an abandoned checkpoint holds (after a rewind, or because its tensors were damaged) go back to the
  backlog: no surviving weights were trained on them.
- The ids in a checkpoint mean the prompts whose digests it carries. The queue learns these digests in the move that
  begins the lineage, so that no other prompts can count as trained under an old name.
- A queue that has forgotten everything is told of all checkpoints in one move (`restore`).
- Otherwise checkpoints that follow one another are committed together, in few moves; one with many ids is committed in
  several. Each move also sets where the queue stands, so a crash in between loses nothing.
"""

import logging
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import NamedTuple

from echo_queue import weights
from echo_queue.connections.storage.object_store import MissingObject, ObjectStore
from echo_queue.errors import Problem, ServiceError
from echo_queue.queue import LearnerQueue, Resumed, RunRules
from echo_queue.queue.learner import COMMIT_STEP
from echo_queue.records import BASE, Version
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
    if resumed.committed is None and queue.restore(newest.name, chain.from_iterable(one.ids for one in to_commit)):
        return newest
    for abandoned in to_undo:
        undone = queue.uncommit(abandoned.name, abandoned.parent, abandoned.ids, abandoned.settled)
        log.warning("checkpoint %s was abandoned: %d groups will be trained again", abandoned.name, undone)
    for ahead in together(to_commit, COMMIT_STEP):
        queue.commit(ahead.name, ahead.ids, settled=ahead.settled or 0)
    return newest


class Trained(NamedTuple):
    """The groups of a checkpoint that its parent does not hold. `settled`: as in `Resumed`."""

    name: str
    parent: str
    ids: tuple[str, ...]
    settled: int | None = None


def apart(store: ObjectStore, resumed: Resumed, newest: CheckpointManifest) -> tuple[list[Trained], list[Trained]]:
    """Returns the path from where the queue stands to `newest`: checkpoints to undo, newest first, then checkpoints to
    commit, oldest first.

    A checkpoint's name is greater than its ancestors' names, so the greater of two is never an ancestor of the other.
    Raises `ServiceError` if the manifest at which the queue stands is gone.
    """
    reader = ManifestReader(store)
    here = _named(reader, resumed.committed)
    there: CheckpointManifest | None = newest
    settled = resumed.settled
    to_undo: list[Trained] = []
    to_commit: list[Trained] = []
    while (here and here.name) != (there and there.name):
        if here is not None and (there is None or here.name > there.name):
            to_undo.append(_trained(here, settled))
            here, settled = _named(reader, here.parent), None
        elif there is not None:
            to_commit.append(_trained(there))
            there = _named(reader, there.parent)
    if here is not None and settled is not None:
        to_commit.append(_trained(here, settled))
    return to_undo, to_commit[::-1]


def together(checkpoints: Iterable[Trained], most: int) -> Iterator[Trained]:
    """Yields checkpoints to commit, oldest first, several as one: the name of the last, and the ids of all.

    There may be thousands after Redis was set back. What is yielded has at most `most` ids, or is one checkpoint.
    """
    gathered: Trained | None = None
    for one in checkpoints:
        if gathered and gathered.settled is None and len(gathered.ids) + len(one.ids) <= most:
            gathered = one._replace(ids=gathered.ids + one.ids)
            continue
        if gathered:
            yield gathered
        gathered = one
    if gathered:
        yield gathered


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


def _trained(manifest: CheckpointManifest, settled: int | None = None) -> Trained:
    return Trained(manifest.name, manifest.parent or NO_CHECKPOINT, manifest.trained, settled)
