"""Checkpoints in the object store: the last authority on what has been trained.

- All ranks save one together: each stores its own rows (`write`) and reports the files, and rank 0 lists them
  (`complete`). All ranks load one together (`restore`), and begin at the same one.
- A checkpoint exists once its manifest does; the manifest is put once, last, and lists the files that hold the state,
  with their digests, and which rows of which tensor each file holds. A torn or damaged checkpoint is passed over with a
  warning, and the one before it counts.
- The newest checkpoint is found by listing: the highest lineage first, then the highest version.
- Each manifest holds the task ids trained since its parent, and the digests of the sets whose prompts they are; a
  lineage's first manifest holds no ids and marks where the lineage began. Pruning removes tensors and keeps manifests,
  the older ones in archives (`learner.recovery.archive`), so that `trained_ids` can prove from storage alone that
  nothing was trained twice.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import torch

from echo_queue.connections.storage.object_store import MissingObject, ObjectStore
from echo_queue.errors import FencedError, Problem, ServiceError
from echo_queue.records import BASE, Version
from learner.model.pieces import Piece
from learner.ranks.team import Team
from learner.recovery import rank_report, state_reader
from learner.recovery.archive import ManifestReader, archive, checkpoint_of, keys, read, standing
from learner.recovery.manifest import (
    MANIFEST,
    NO_SETS,
    PREFIX,
    CheckpointManifest,
    History,
    decode,
    folder_of,
    name_of,
)
from learner.recovery.rank_report import RankReport
from learner.recovery.state_files import DTYPES, FILE_BYTES, SUFFIX, write_files

log = logging.getLogger(__name__)

NO_OFFER = b""
"""Rank 0's decision that no further checkpoint is tried."""
Restore = Callable[[Mapping[str, tuple[int, ...]], Callable[[Sequence[Piece]], None]], None]
"""`Policy.restore`: is given the shapes of the stored tensors, and a function that fills pieces."""


class DamagedError(Exception):
    """A rank cannot use a checkpoint: a file with rows of its own is gone or damaged."""


def write(
    store: ObjectStore, team: Team, version: Version, pieces: Iterable[Piece], file_bytes: int = FILE_BYTES
) -> None:
    """Stores this rank's pieces in files of at most `file_bytes`, and reports them to rank 0. Every rank calls it.

    Raises what `write_files` raises, once rank 0 has been told.
    """
    name = name_of(version)
    try:
        report = RankReport(write_files(store, folder_of(name), pieces, file_bytes))
    except Exception as error:
        team.report(_parts_of(name), rank_report.failed(error).encode())
        raise
    team.report(_parts_of(name), report.encode())


def complete(
    store: ObjectStore,
    team: Team,
    version: Version,
    history: History,
    deadline_s: float,
) -> CheckpointManifest:
    """Rank 0: makes a checkpoint of what all ranks have stored.

    Raises `EchoQueueError`, which names the ranks whose `write` failed, or that did not report within `deadline_s`
    (`RankLostError`); `FencedError` if another learner made a checkpoint of this name.
    """
    name = name_of(version)
    reports = rank_report.gather(team, _parts_of(name), deadline_s)
    rank_report.raise_failures(team, reports, f"save its part of checkpoint {name}")
    files = tuple(file for report in reports for file in report.files)
    trained, parent, window, sets = history
    manifest = CheckpointManifest(*version, parent, window, trained, sets, name, files)
    _check_whole(manifest)
    _put_manifest(store, manifest)
    return manifest


def restore(store: ObjectStore, team: Team, policy_restore: Restore) -> CheckpointManifest | None:
    """Restores the newest checkpoint that every rank can read, and returns it; None if there never was one.

    Every rank calls it, with its own policy's `restore`, and each reads only the files with rows of its own; a mark of
    the base model has none. Raises `ServiceError`, on all ranks, if there are checkpoints of trained weights and none
    is whole: only a person may decide to begin again. A rank that fails otherwise raises its error, and the others an
    `EchoQueueError` that names it.
    """
    offers = _manifests(store)
    damaged: list[str] = []
    while (manifest := _offered(team, offers)) is not None:
        if manifest.at_base:
            if damaged:
                break
            return manifest
        damages = _restore_one(store, team, manifest, policy_restore)
        if not damages:
            if damaged and team.first:
                log.warning("these weights lack what %s trained after %s", ", ".join(damaged), manifest.name)
            return manifest
        if team.first:
            reason = "; ".join(damages)
            log.warning("checkpoint %s cannot be used (%s); trying the one before it", manifest.name, reason)
        damaged.append(manifest.name)
    if damaged:
        fix = "restore the bucket; or remove its checkpoints/ and give the run another name, to begin again"
        raise ServiceError(Problem(PREFIX, f"no checkpoint is whole: {', '.join(damaged)}", fix))
    return None


def trained_ids(store: ObjectStore) -> list[str]:
    """Returns the ids that the surviving history trained, in order from its beginning; reads manifests only."""
    return [task for manifest in reversed(list(history(store))) for task in manifest.trained]


def history(store: ObjectStore) -> Iterator[CheckpointManifest]:
    """Yields the surviving history, newest first; reads manifests only."""
    last = next(_manifests(store), None)
    if last is not None:
        yield from chain(store, last)


def chain(store: ObjectStore, manifest: CheckpointManifest) -> Iterator[CheckpointManifest]:
    """Yields `manifest` and its ancestors, newest first; those that are archived come without their files."""
    reader = ManifestReader(store)
    yield manifest
    while manifest.parent is not None:
        manifest = reader.read(manifest.parent)
        yield manifest


def lineages(store: ObjectStore) -> set[int]:
    """Returns the lineages that left anything under `checkpoints/`, whole or not."""
    return {int(first) for key in keys(store) if (first := checkpoint_of(key).partition("/")[0]).isdecimal()}


def mark(store: ObjectStore, lineage: int, begin: CheckpointManifest | None, window: float = 0.0) -> CheckpointManifest:
    """Saves the first checkpoint of `lineage`, which names the state of `begin`: the newest one from now on.

    Without `begin` that is the base model, and `window` is w, in batches.
    """
    if begin is None:
        begun_at = Version(lineage, BASE.number)
        manifest = CheckpointManifest(*begun_at, None, window, (), NO_SETS, name_of(begun_at), ())
    else:
        manifest = replace(begin, lineage=lineage, parent=begin.name, trained=())
    _put_manifest(store, manifest)
    return manifest


def prune(store: ObjectStore, newest_manifest: CheckpointManifest, keep: int) -> None:
    """Removes all tensors but the newest `keep` of this history; those of abandoned histories as well.

    Manifests that are older than the tensors that stay are archived. What a call costs does not grow with the history.
    """
    kept: set[str] = set()
    for manifest in chain(store, newest_manifest):
        if not manifest.at_base:
            kept.add(manifest.holder)
        if len(kept) == keep:
            break
    listed = keys(store)
    tensors = ((key, checkpoint_of(key)) for key in listed if key.endswith(SUFFIX))
    gone = [key for key, name in tensors if name not in kept and name < newest_manifest.name]
    if gone:
        store.delete(gone)
    archive(store, [name for name in standing(listed) if name < min(kept)])


def verify(store: ObjectStore, manifest: CheckpointManifest) -> None:
    """Reads the checkpoint's files. Raises `MissingObject`, or `ValueError` if one is damaged."""
    state_reader.verify_files(store, manifest.folder, manifest.files)


def _offered(team: Team, offers: Iterator[CheckpointManifest]) -> CheckpointManifest | None:
    """Returns, on every rank, the next checkpoint that rank 0 finds; None if there is none."""

    def offer() -> bytes:
        manifest = next(offers, None)
        return manifest.encode() if manifest else NO_OFFER

    data = team.share(offer)
    return decode(data) if data != NO_OFFER else None


def _restore_one(
    store: ObjectStore, team: Team, manifest: CheckpointManifest, policy_restore: Restore
) -> tuple[str, ...]:
    """Lets every rank read its rows. Returns, on every rank, why ranks cannot use the checkpoint; empty: all can."""

    def read(pieces: Sequence[Piece]) -> None:
        try:
            state_reader.read_files(store, manifest.folder, state_reader.plan(manifest.files, pieces))
        except (MissingObject, ValueError) as error:
            raise DamagedError(str(error)) from error

    what = f"loading checkpoint {manifest.name}"
    own = RankReport()
    try:
        policy_restore(manifest.shapes, read)
    except DamagedError as error:
        own = rank_report.damaged(error)
    except Exception as error:
        team.report(what, rank_report.failed(error).encode())
        raise
    # A rank whose store does not answer reports that once its request has reached the store's own deadline.
    reports = rank_report.exchange(team, what, own, store.deadline_s + team.deadline_s)
    rank_report.raise_failures(team, reports, f"load its part of checkpoint {manifest.name}")
    found = [(rank, report.damage) for rank, report in enumerate(reports) if report.damage is not None]
    return tuple(damage if team.size == 1 else f"rank {rank}: {damage}" for rank, damage in found)


def _check_whole(manifest: CheckpointManifest) -> None:
    """Raises `ValueError` if the files lack rows of a tensor of which they hold others."""
    types = {rows.name: DTYPES[rows.dtype] for file in manifest.files for rows in file.rows}
    wanted = (
        Piece(name, shape, 0, torch.empty(shape, dtype=types[name], device="meta"))
        for name, shape in manifest.shapes.items()
    )
    state_reader.plan(manifest.files, wanted)


def _parts_of(name: str) -> str:
    """The name of the ranks' reports on what they stored."""
    return f"checkpoint {name}"


def _put_manifest(store: ObjectStore, manifest: CheckpointManifest) -> None:
    if not store.put(folder_of(manifest.name) + MANIFEST, manifest.encode(), once=True):
        raise FencedError(Problem(manifest.name, "another learner made this checkpoint", "let only one learner run"))


def _manifests(store: ObjectStore) -> Iterator[CheckpointManifest]:
    """Yields manifests, newest first. A torn manifest was never acknowledged, so it is no checkpoint."""
    for name in sorted(standing(keys(store)), reverse=True):
        try:
            yield read(store, name)
        except ValueError as error:
            log.warning("checkpoint %s was never finished (%s)", name, error)
