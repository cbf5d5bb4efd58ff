"""Saves and loads whole checkpoints in one process, by what every rank calls."""

from collections.abc import Callable, Mapping, Sequence

import torch

from echo_queue.connections.storage.object_store import ObjectStore
from echo_queue.records import Version
from learner.model.pieces import Piece
from learner.ranks.team import Team
from learner.recovery import checkpoint
from learner.recovery.manifest import NO_SETS, CheckpointManifest, History
from learner.recovery.state_files import FILE_BYTES, whole

DEADLINE_S = 60.0
NOTHING: Mapping[str, torch.Tensor] = {}
Shapes = Mapping[str, tuple[int, ...]]
Read = Callable[[Sequence[Piece]], None]


class HeldState:
    """Stands in for a policy: takes all rows of whatever a checkpoint holds, into `tensors`.

    A tensor that it does not have in that shape is made: the random state of bytes, any other of float32.
    """

    def __init__(self, tensors: Mapping[str, torch.Tensor] = NOTHING) -> None:
        self.tensors = dict(tensors)

    def restore(self, stored: Shapes, read: Read) -> None:
        self.tensors = {name: self._room(name, shape) for name, shape in stored.items()}
        read(tuple(whole(self.tensors)))

    def _room(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        own = self.tensors.get(name)
        if own is not None and tuple(own.shape) == shape:
            return own
        return torch.empty(shape, dtype=torch.uint8 if name == "rng" else torch.float32)


def save(
    store: ObjectStore,
    version: Version,
    tensors: Mapping[str, torch.Tensor],
    *,
    trained: tuple[str, ...],
    parent: CheckpointManifest | None,
    window: float,
    sets: Mapping[str, str] = NO_SETS,
    file_bytes: int = FILE_BYTES,
) -> CheckpointManifest:
    team = Team.alone()
    checkpoint.write(store, team, version, whole(tensors), file_bytes)
    history = History(trained, parent.name if parent else None, window, sets)
    return checkpoint.complete(store, team, version, history, DEADLINE_S)


def newest(
    store: ObjectStore, into: Mapping[str, torch.Tensor] = NOTHING
) -> tuple[CheckpointManifest, dict[str, torch.Tensor]] | None:
    """Returns the newest checkpoint that is whole, with its tensors: those of `into` where they fit."""
    held = HeldState(into)
    manifest = checkpoint.restore(store, Team.alone(), held.restore)
    return (manifest, held.tensors) if manifest else None
