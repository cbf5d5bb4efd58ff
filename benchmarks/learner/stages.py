"""The work of a learner besides updates: the snapshot to publish, a publication, a checkpoint and its way back.

The store is the project's own S3 server on this machine's disk: its speed is no network's.
"""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from benchmarks.learner.timing import held_up, timed, timed_result
from benchmarks.learner.trainers import Ours
from echo_queue.config import Weights
from echo_queue.connections.secrets import StoreKeys
from echo_queue.connections.storage.object_store import ObjectStore
from echo_queue.errors import Problem, ServiceError
from echo_queue.launch.servers.s3_server import S3Server
from echo_queue.records import Version
from echo_queue.weights import WeightPublisher
from echo_queue.weights.layout import Share
from echo_queue.weights.part_makers import PartMaker
from echo_queue.weights.signatures import Signer
from learner.model.policy import Policy
from learner.publication.coding_threads import threads_beside
from learner.publication.snapshot import take_share
from learner.ranks.team import Team
from learner.recovery import checkpoint
from learner.recovery.background_saver import BackgroundSaver
from learner.recovery.manifest import History

DEADLINE_S = 600.0
RUN = "benchmark"
BYTES = 2 * (3 * 4 + 2)
"""Bytes of two checkpoints and two versions, by parameter."""


@dataclass(frozen=True)
class Stages:
    """Seconds and bytes. The stalls are what training waits for; the rest runs beside it.

    `publish_s`: a version whose learner has taken one step since the version before. `restore_s`: the checkpoint is
    read into a model that stands; a restart has to start a process and to make the model before that. None: not
    measured yet.
    """

    snapshot_stall_s: float
    publish_s: float
    publish_bytes: int
    checkpoint_stall_s: float | None = None
    checkpoint_s: float | None = None
    checkpoint_bytes: int | None = None
    restore_s: float | None = None

    def __str__(self) -> str:
        if self.checkpoint_stall_s is None:
            stalls = f"snapshot stalls {1e3 * self.snapshot_stall_s:.1f} ms"
            return f"{stalls}, published in {self.publish_s:.2f} s ({self.publish_bytes / 1e6:.1f} MB)"
        return (
            f"checkpoint stalls {1e3 * self.checkpoint_stall_s:.1f} ms, stored in {self.checkpoint_s:.2f} s "
            f"({(self.checkpoint_bytes or 0) / 1e6:.1f} MB), read in {self.restore_s:.2f} s"
        )


def snapshot_of(policy: Policy) -> Share:
    part_bytes = Weights().part_bytes
    return take_share(policy.published(), policy.dtype, policy.team, part_bytes, on_host=policy.offload)


def stages_of(trainer: Ours) -> Iterator[Stages]:
    """Measures a learner that has taken its first steps, on one rank. Ends with the state that it began with.

    Yields what is known after the publication, and after the checkpoint.
    """
    with tempfile.TemporaryDirectory() as folder, temporary_store(Path(folder)) as store:
        _check_disk(Path(folder), sum(parameter.numel() for parameter in trainer.model.parameters()))
        found = _published(trainer, store)
        yield found
        yield _saved(trainer, store, found)


def _check_disk(folder: Path, parameters: int) -> None:
    """Raises `ServiceError` if two versions and two checkpoints may not fit."""
    needed, free = BYTES * parameters, shutil.disk_usage(folder).free
    if needed > free:
        what = f"has {free / 1e9:.1f} GB free, and two versions and two checkpoints need {needed / 1e9:.1f} GB"
        raise ServiceError(Problem(str(folder), what, "set TMPDIR to a folder with more room, or take --no-stages"))


def _published(trainer: Ours, store: ObjectStore) -> Stages:
    publisher = publisher_to(store)
    publisher.publish_share(Version(1, 1), snapshot_of(trainer.policy))
    before = sum(publisher.stored.values())
    trainer.update(2)
    stall_s, snapshot = timed_result(partial(snapshot_of, trainer.policy))
    publish_s = timed(lambda: publisher.publish_share(Version(1, 2), snapshot))
    return Stages(stall_s, publish_s, sum(publisher.stored.values()) - before)


def publisher_to(store: ObjectStore) -> WeightPublisher:
    """Returns a publisher with as many threads as a learner's, on one rank."""
    threads = threads_beside(torch.get_num_threads(), on_gpu=torch.cuda.is_available())
    return WeightPublisher(
        store, RUN, Signer.generate(), Weights(), makers=PartMaker(store, Weights(), threads=threads)
    )


def _saved(trainer: Ours, store: ObjectStore, found: Stages) -> Stages:
    team, policy = Team.alone(), trainer.policy
    saver = BackgroundSaver(store, team, DEADLINE_S)
    for version in (Version(1, 1), Version(1, 2)):  # the first one makes room for the copies
        # The copies go on beside the next update, as in the training loop.
        stall_s = held_up(lambda at=version: saver.begin(at, policy.pieces(), History()))  # type: ignore[misc]
        rest_s, manifest = timed_result(saver.wait)
    assert manifest is not None
    return replace(
        found,
        checkpoint_stall_s=stall_s,
        checkpoint_s=stall_s + rest_s,
        checkpoint_bytes=sum(file.size for file in manifest.files),
        restore_s=timed(lambda: checkpoint.restore(store, team, policy.restore)),
    )


@contextmanager
def temporary_store(folder: Path) -> Iterator[ObjectStore]:
    server = S3Server(folder, StoreKeys("BENCHMARKBENCHMARKBE", "benchmark"))
    server.start()
    try:
        store = ObjectStore(replace(server.endpoint("benchmark"), put_once=True), RUN, DEADLINE_S)
        store.create_bucket()
        yield store
    finally:
        server.stop()
