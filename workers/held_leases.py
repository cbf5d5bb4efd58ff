"""The table of the leases that this worker holds. (`leaser` gets new ones; `lease_keeper` renews those held.)

- A task is held from its lease until it is completed, failed, handed back or lost. Its samples are useless after that.
- The rollout loop checks which tasks are still held, and takes all others out of the engine.
- A lease is named by its `Task` object, of which each lease makes a new one. So the answer to a call about an earlier
  lease, such as that its group came too late, never ends a newer lease of the same task.
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
        self._leases: dict[str, tuple[Task, int]] = {}
        self._partials: Sequence[tuple[Task, PartialGroup]] = ()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._leases)

    def add(self, tasks: Iterable[Task], version: int) -> None:
        """Holds tasks that were leased; weights of `version` will begin them."""
        with self._lock:
            self._leases.update((task.id, (task, version)) for task in tasks)

    def set_version(self, task: Task, version: int) -> None:
        """Notes that the oldest token of `task` is of `version`."""
        with self._lock:
            if self.holds(task):
                self._leases[task.id] = (task, version)

    def versions(self) -> list[tuple[Task, int]]:
        """Returns the tasks, each with the version of its oldest token, or of the weights that will begin it."""
        with self._lock:
            return list(self._leases.values())

    def tasks(self) -> list[Task]:
        """Returns the tasks by id."""
        return sorted((task for task, _ in self.versions()), key=lambda task: task.id)

    def held_out(self) -> list[Task]:
        """Returns the tasks of evaluations."""
        return [task for task, _ in self.versions() if task.version is not None]

    def holds(self, task: Task) -> bool:
        """Returns whether this worker still holds this lease of the task."""
        lease = self._leases.get(task.id)
        return lease is not None and lease[0] is task

    def hand_back(self, release: Callable[[list[str]], object], tasks: Collection[Task] | None = None) -> list[str]:
        """Hands these tasks back, or all, by calling `release`, with no renewal in between.

        Returns the ids of those that were held.
        """
        with self.turn:
            held = self.tasks() if tasks is None else [task for task in tasks if self.holds(task)]
            ids = [task.id for task in held]
            if held:
                release(ids)
                self.drop(held)
            return ids

    def drop(self, tasks: Collection[Task]) -> list[str]:
        """Drops leases that were completed, failed, handed back or lost. Returns the ids of those held until now."""
        with self._lock:
            held = [task.id for task in tasks if self.holds(task)]
            for name in held:
                del self._leases[name]
            return held

    def note_partials(self, partials: Sequence[tuple[Task, PartialGroup]]) -> None:
        """Notes the newest partial rollouts, each with its task; they replace those noted before."""
        self._partials = partials

    def take_partials(self) -> list[tuple[Task, PartialGroup]]:
        """Returns the partial rollouts noted since the last call, of tasks that are still held."""
        partials, self._partials = self._partials, ()
        return [(task, partial) for task, partial in partials if self.holds(task)]
