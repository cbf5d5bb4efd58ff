"""The tasks that this worker answers for, from lease to completion; every thread may ask and tell.

- A task is held until it was completed, failed, handed back or lost: after that, what becomes of its samples no longer
  matters.
- Who generates looks whether it still holds a task, and takes what it does not out of the engine.
"""

import threading
from collections.abc import Callable, Collection, Iterable, Sequence

from echo_queue.records import PartialGroup, Task


class HeldLeases:
    """`turn`: for who renews all leases or hands them back; one that renews meanwhile would undo the other's work."""

    def __init__(self) -> None:
        self.turn = threading.Lock()
        self._versions: dict[str, int] = {}
        self._partials: Sequence[PartialGroup] = ()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._versions)

    def take(self, tasks: Iterable[Task], version: int) -> None:
        """They were leased; weights of `version` are to begin them."""
        with self._lock:
            self._versions.update((task.id, version) for task in tasks)

    def date(self, task: str, version: int) -> None:
        """The oldest token of `task` is of `version`."""
        with self._lock:
            if task in self._versions:
                self._versions[task] = version

    def versions(self) -> dict[str, int]:
        """Task id → version of its oldest token, or of the weights that are to begin it."""
        with self._lock:
            return dict(self._versions)

    def ids(self) -> list[str]:
        return sorted(self.versions())

    def holds(self, task: str) -> bool:
        return task in self._versions

    def hand_back(self, release: Callable[[list[str]], object]) -> list[str]:
        """All of them, by `release`; no renewal comes between. Returns their ids."""
        with self.turn:
            held = self.ids()
            if held:
                release(held)
                self.drop(held)
            return held

    def drop(self, tasks: Collection[str]) -> list[str]:
        """They were completed, failed, handed back or lost. Returns those that were held until now."""
        with self._lock:
            return [task for task in tasks if self._versions.pop(task, None) is not None]

    def note(self, partials: Sequence[PartialGroup]) -> None:
        """How far tasks are; replaces what was noted before."""
        self._partials = partials

    def take_partials(self) -> list[PartialGroup]:
        """What was noted since the last call, of tasks that are still held."""
        partials, self._partials = self._partials, ()
        return [one for one in partials if self.holds(one.task)]
