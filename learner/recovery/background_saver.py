"""Saves checkpoints beside the training loop, one at a time. Every rank has one, and each saves its own rows.

- `begin` copies the state into host memory, so that the next update cannot change what is saved: at once on a CPU; of a
  GPU's state beside the next update's kernels, and only the optimizer's step waits for that (`Policy.keep_until`).
- The memory of the copies is used again by the next checkpoint. Beside a GPU it is pinned, which takes many seconds for
  a large model: a thread begins with that as soon as the pieces are known (`make_room`).
- A checkpoint that is durable is given to the loop of rank 0 once, by `finished` or `wait`. That loop alone commits it,
  and then lets the tensors of older ones be removed (`prune`).
- A failure in the background is raised by the loop's next call, as if the loop had saved the checkpoint itself. Rank 0
  hears of the failures of all ranks, and a rank that stays silent is named at the deadline.
"""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from echo_queue.checked_thread import CheckedThread
from echo_queue.connections.storage.object_store import ObjectStore
from echo_queue.errors import DeadlineError, Problem
from echo_queue.records import Version
from echo_queue.weights.host_memory import rooms_for
from learner.model.device import copy_beside
from learner.model.pieces import Piece
from learner.ranks.team import Team
from learner.recovery import checkpoint
from learner.recovery.manifest import CheckpointManifest, History, name_of

log = logging.getLogger(__name__)

CLOSE_S = 30.0


class Snapshot(NamedTuple):
    """A copy of the state after a version, and what its manifest is to say (`CheckpointManifest`).

    `copied`: the event after which the copy is complete; None: it is.
    """

    version: Version
    pieces: Sequence[Piece]
    history: History
    copied: "torch.cuda.Event | None"


class BackgroundThread(CheckedThread):
    """Does one thing beside the loop."""

    def __init__(self, name: str, action: Callable[[], object]) -> None:
        super().__init__(name)
        self._action = action

    def work(self) -> None:
        self._action()


class SaveThread(BackgroundThread):
    """Saves this rank's part of one checkpoint; rank 0 then completes it, and has it in `saved`.

    `beside`: what else rank 0 stores before that.
    """

    def __init__(
        self, store: ObjectStore, team: Team, snapshot: Snapshot, deadline_s: float, beside: Callable[[], object]
    ) -> None:
        super().__init__("checkpoint", self._save)
        self.name_of_checkpoint = name_of(snapshot.version)
        self.written = False
        """True once this rank's part is stored and reported."""
        self.saved: CheckpointManifest | None = None
        self._store, self._team, self._snapshot, self._deadline_s = store, team, snapshot, deadline_s
        self._beside = beside

    def _save(self) -> None:
        version, pieces, history, copied = self._snapshot
        if copied is not None:
            copied.synchronize()
        checkpoint.write(self._store, self._team, version, pieces)
        self.written = True
        if self._team.first:
            self._beside()
            self.saved = checkpoint.complete(self._store, self._team, version, history, self._deadline_s)


class BackgroundSaver:
    """The training loop's thread calls every method.

    `deadline_s`: the longest wait for this rank's part of a checkpoint, and then for those of the other ranks.
    `beside`: what rank 0 stores before each checkpoint counts.
    """

    def __init__(
        self, store: ObjectStore, team: Team, deadline_s: float, beside: Callable[[], object] = lambda: None
    ) -> None:
        self._store, self._team, self._deadline_s, self._beside = store, team, deadline_s, beside
        self._copies: dict[tuple[str, int], Tensor] = {}
        self._saving: SaveThread | None = None
        self._pruning: BackgroundThread | None = None
        self._making_room: BackgroundThread | None = None

    def make_room(self, pieces: Callable[[], Sequence[Piece]]) -> None:
        """Begins to pin the memory of the first checkpoint, which is to have these pieces, where that takes long."""
        if self._making_room is not None or self._copies:
            self.check()
        elif _on_gpu(found := pieces()):
            self._making_room = BackgroundThread("room for checkpoints", lambda: self._find_room(found))
            self._making_room.start()

    def begin(self, version: Version, pieces: Sequence[Piece], history: History) -> "torch.cuda.Event | None":
        """Copies this rank's pieces and begins to save them. The checkpoint before must have been taken by `wait`.

        Returns the event before which a GPU must not change them; None if they may change.
        """
        if self._saving is not None:
            raise RuntimeError(f"checkpoint {self._saving.name_of_checkpoint} is still being saved")
        copies, copied = self._copy(pieces)
        snapshot = Snapshot(version, copies, history, copied)
        self._saving = SaveThread(self._store, self._team, snapshot, self._deadline_s, self._beside)
        self._saving.start()
        return copied

    @property
    def busy(self) -> bool:
        """True while a checkpoint is saved, or is durable and was not returned yet."""
        return self._saving is not None

    def finished(self) -> CheckpointManifest | None:
        """Rank 0: returns the checkpoint that was begun, if it is durable by now and was not returned before.

        Other ranks get None, and hear of the failure of their own part.
        """
        thread = self._saving
        if thread is None or thread.is_alive():
            return None
        self.check()
        self._saving = None
        return thread.saved

    def wait(self) -> CheckpointManifest | None:
        """Waits for the checkpoint under way, and returns what `finished` returns. Raises `DeadlineError`."""
        thread = self._saving
        if thread is not None:
            thread.join(self._deadline_s)
            if thread.written:  # it waits for the other ranks, until a deadline of its own that names them
                thread.join(self._deadline_s)
            if thread.is_alive():
                what = f"checkpoint {thread.name_of_checkpoint} was not saved within {self._deadline_s:.0f} s"
                fix = "check that the object store accepts data; a restart continues from the checkpoint before it"
                raise DeadlineError(Problem("checkpoint", what, fix))
        return self.finished()

    def prune(self, newest: CheckpointManifest, keep: int) -> None:
        """Begins to remove all tensors but those of the newest `keep` checkpoints. `newest` must be committed."""
        if self._pruning is not None:
            self._pruning.join(self._deadline_s)
        self.check()
        self._pruning = BackgroundThread("prune", lambda: checkpoint.prune(self._store, newest, keep))
        self._pruning.start()

    def check(self) -> None:
        """Raises the error that ended a thread of this rank, if any."""
        for thread in (self._making_room, self._saving, self._pruning):
            if thread is not None:
                thread.check()

    def close(self) -> None:
        """Lets what is under way end, for `CLOSE_S` at most: a checkpoint that becomes durable counts."""
        give_up = time.monotonic() + CLOSE_S
        for thread in (self._making_room, self._pruning, self._saving):
            if thread is not None:
                thread.join(max(0.0, give_up - time.monotonic()))
        if self._pruning is not None and self._pruning.failure is not None:
            log.warning("the files of older checkpoints are still there: %s", self._pruning.failure)
        if self._saving is not None and self._saving.is_alive():
            log.warning("a checkpoint is left half saved; it does not count")

    def _copy(self, pieces: Sequence[Piece]) -> tuple[tuple[Piece, ...], "torch.cuda.Event | None"]:
        """Returns copies on the CPU, in the memory of the last ones where they fit, and when they will be complete."""
        if self._making_room is not None:
            self._making_room.join(self._deadline_s)
            self.check()
            if self._making_room.is_alive():
                what = f"its host memory was not pinned within {self._deadline_s:.0f} s"
                raise DeadlineError(Problem("checkpoint", what, "see whether the machine swaps; a restart continues"))
            self._making_room = None
        self._find_room(pieces)
        copies = [self._copies[piece.name, piece.first] for piece in pieces]
        copied = copy_beside(copies, [piece.tensor for piece in pieces])
        return tuple(replace(piece, tensor=copy) for piece, copy in zip(pieces, copies, strict=True)), copied

    def _find_room(self, pieces: Sequence[Piece]) -> None:
        """Leaves a room for each of these pieces in `_copies`, and for nothing else."""
        known = {(piece.name, piece.first): piece for piece in pieces}
        self._copies = {key: room for key, room in self._copies.items() if key in known and _fits(room, known[key])}
        missing = [key for key in known if key not in self._copies]
        rooms = rooms_for([known[key].tensor for key in missing], pinned=_on_gpu(pieces))
        self._copies |= zip(missing, rooms, strict=True)


def _on_gpu(pieces: Sequence[Piece]) -> bool:
    return any(piece.tensor.is_cuda for piece in pieces)


def _fits(room: Tensor, piece: Piece) -> bool:
    return room.shape == piece.tensor.shape and room.dtype == piece.tensor.dtype
