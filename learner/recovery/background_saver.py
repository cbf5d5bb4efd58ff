"""Saves checkpoints beside the training loop, one at a time.

- `begin` copies the state into host memory before it returns, so that the next update cannot change what is saved. The
  memory of the copies is used again by the next checkpoint.
- A checkpoint that is durable is given to the loop once, by `finished` or `wait`. The loop alone commits it.
- A failure in the background is raised by the loop's next call, as if the loop had saved the checkpoint itself.
"""

import logging
import threading
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from echo_queue.errors import DeadlineError, Problem
from echo_queue.records import Version
from echo_queue.storage.object_store import ObjectStore
from learner.recovery import checkpoint
from learner.recovery.checkpoint import CheckpointManifest

log = logging.getLogger(__name__)

CLOSE_S = 30.0


class Snapshot(NamedTuple):
    """A copy of the state after a version, and what its manifest is to say (`CheckpointManifest`)."""

    version: Version
    tensors: Mapping[str, Tensor]
    trained: tuple[str, ...]
    parent: CheckpointManifest | None
    window: float


class SaveThread(threading.Thread):
    """Saves one checkpoint. Afterwards there is either `saved` or `failure`."""

    def __init__(self, store: ObjectStore, snapshot: Snapshot) -> None:
        super().__init__(name="checkpoint", daemon=True)
        self.snapshot = snapshot
        self.saved: CheckpointManifest | None = None
        self.failure: BaseException | None = None
        self._store = store

    def run(self) -> None:
        version, tensors, trained, parent, window = self.snapshot
        try:
            self.saved = checkpoint.save(self._store, version, tensors, trained=trained, parent=parent, window=window)
        except BaseException as error:
            self.failure = error


class BackgroundSaver:
    """The training loop's thread calls every method. `deadline_s` is the deadline of one checkpoint."""

    def __init__(self, store: ObjectStore, deadline_s: float) -> None:
        self._store, self._deadline_s = store, deadline_s
        self._copies: dict[str, Tensor] = {}
        self._thread: SaveThread | None = None

    def begin(
        self,
        version: Version,
        tensors: Mapping[str, Tensor],
        *,
        trained: tuple[str, ...],
        parent: CheckpointManifest | None,
        window: float,
    ) -> None:
        """Copies the state and begins to save it. The checkpoint before it must have been taken by `wait`."""
        if self._thread is not None:
            raise RuntimeError(f"checkpoint {checkpoint.name_of(self._thread.snapshot.version)} is still being saved")
        self._thread = SaveThread(self._store, Snapshot(version, self._copy(tensors), trained, parent, window))
        self._thread.start()

    def finished(self) -> CheckpointManifest | None:
        """Returns the checkpoint that was begun, if it is durable by now and was not returned before."""
        thread = self._thread
        if thread is None or thread.is_alive():
            return None
        self.check()
        self._thread = None
        return thread.saved

    def wait(self) -> CheckpointManifest | None:
        """Waits for the checkpoint under way, and returns what `finished` returns. Raises `DeadlineError`."""
        if self._thread is not None:
            self._thread.join(self._deadline_s)
            if self._thread.is_alive():
                name = checkpoint.name_of(self._thread.snapshot.version)
                what = f"checkpoint {name} was not saved within {self._deadline_s:.0f} s"
                fix = "check that the object store accepts data; a restart continues from the checkpoint before it"
                raise DeadlineError(Problem("checkpoint", what, fix))
        return self.finished()

    def check(self) -> None:
        """Raises the error that ended the checkpoint under way, if any."""
        if self._thread is not None and self._thread.failure is not None:
            raise self._thread.failure

    def close(self) -> None:
        """Lets the checkpoint under way end, for `CLOSE_S` at most; the next learner finds it if it became durable."""
        if self._thread is not None:
            self._thread.join(CLOSE_S)
            if self._thread.is_alive():
                log.warning("a checkpoint is left half saved; it does not count")

    def _copy(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Returns copies on the CPU, in the memory of the last ones where they fit. Transfers from GPUs run at once."""
        self._copies = {name: self._room_for(name, tensor) for name, tensor in tensors.items()}
        for name, tensor in tensors.items():
            self._copies[name].copy_(tensor.detach(), non_blocking=True)
        for device in {tensor.device for tensor in tensors.values() if tensor.is_cuda}:
            torch.cuda.synchronize(device)
        return self._copies

    def _room_for(self, name: str, tensor: Tensor) -> Tensor:
        room = self._copies.get(name)
        if room is not None and room.shape == tensor.shape and room.dtype == tensor.dtype:
            return room
        return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
