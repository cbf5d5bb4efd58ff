"""The table of the leases that this worker holds. (`leaser` gets new ones; `lease_keeper` renews those held.)

- A task is held from its lease until it is completed, failed, handed back or lost. Its samples are useless after that.
- The rollout loop checks which tasks are still held, and takes all others out of the engine.
"""

import threading
from collections.abc import Callable, Collection, Iterable, Sequence

from echo_queue.records import PartialGroup, Task


class HeldLeases:
    """The leases by task id. Any thread may use it.

    `turn` is the lock of a thread that renews all leases or hands them back. Without it, a renewal in between would
    take back leases that are being handed back.
    """

    def __init__(self) -> None:
        self.turn = threading.Lock()
        self._versions: dict[str, int] = {}
        self._partials: Sequence[PartialGroup] = ()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._versions)

    def add(self, tasks: Iterable[Task], version: int) -> None:
        """Holds tasks that were leased; weights of `version` will begin them."""
        with self._lock:
            self._versions.update((task.id, version) for task in tasks)

    def set_version(self, task: str, version: int) -> None:
        """Notes that the oldest token of `task` is of `version`."""
        with self._lock:
            if task in self._versions:
                self._versions[task] = version

    def versions(self) -> dict[str, int]:
        """Maps task ids to the version of the oldest token, or of the weights that will begin the task."""
        with self._lock:
            return dict(self._versions)

    def ids(self) -> list[str]:
        return sorted(self.versions())

    def holds(self, task: str) -> bool:
        """Returns whether this worker still holds the task."""
        return task in self._versions

    def hand_back(self, release: Callable[[list[str]], object]) -> list[str]:
        """Hands all tasks back by calling `release`, with no renewal in between. Returns their ids."""
        with self.turn:
            held = self.ids()
            if held:
                release(held)
                self.drop(held)
            return held

    def drop(self, tasks: Collection[str]) -> list[str]:
        """Drops tasks that were completed, failed, handed back or lost. Returns those that were held until now."""
        with self._lock:
            return [task for task in tasks if self._versions.pop(task, None) is not None]

    def note_partials(self, partials: Sequence[PartialGroup]) -> None:
        """Notes the newest partial rollouts; they replace those noted before."""
        self._partials = partials

    def take_partials(self) -> list[PartialGroup]:
        """Returns the partial rollouts noted since the last call, of tasks that are still held."""
        partials, self._partials = self._partials, ()
        return [one for one in partials if self.holds(one.task)]
