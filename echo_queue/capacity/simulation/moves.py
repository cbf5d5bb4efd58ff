"""The moves of a queue as a simulation makes them.

`MemoryQueue` decides in memory, by `queue/staleness_rules.py`. The tests have the real queue make them, whose Lua
functions then read the simulated clock: both decide the same in the same order, so a simulation has the same figures.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol


class Leased(NamedTuple):
    """A task that a machine has leased.

    `prompt`: the number of its prompt. `needs`: the oldest version that may generate it. `oldest`: that of the partial
    rollout which the machine continues, of which `done` is generated; without one, `oldest` is None and `done` 0.
    """

    task: str
    prompt: int
    needs: int
    oldest: int | None = None
    done: float = 0.0


class DrainedTasks(NamedTuple):
    """The answer to a drain: ids of the learner's groups, how many more are ready, how many went back as too old, and
    the seats that are kept for late groups.
    """

    tasks: Sequence[str]
    ready: int
    late: int
    seats: int


@dataclass(frozen=True)
class Counts:
    """What the queue has counted since it began, in tasks.

    `late`: groups that were too old when they were drained, or when they were completed. `cancelled`: tasks that went
    back while they were generated. `expired`: leases that ran out. `dead`: tasks that were given up.
    """

    late: int = 0
    cancelled: int = 0
    expired: int = 0
    dead: int = 0


class SimulatedQueue(Protocol):
    """A queue between a simulated learner and simulated machines. `now_s`: the simulated time, set before each move."""

    now_s: float

    @property
    def untrained(self) -> int:
        """The number of groups that are admitted and not yet trained."""

    def lease(self, machine: str, version: int, count: int) -> Sequence[Leased]:
        """Leases up to `count` tasks to a machine that serves `version`."""

    def begin(self, machine: str, task: str, oldest: int) -> bool:
        """Notes the version of the oldest token of a task, which renews its lease.

        Returns False if the machine does not hold it any more.
        """

    def keep(self, machine: str, task: str, oldest: int, newest: int, done: float) -> bool:
        """Stores how far a task is, for the machine that leases it next. Returns False if this one does not hold it."""

    def release(self, machine: str, tasks: Sequence[str]) -> None:
        """Hands tasks back; the next sweep moves them."""

    def lose(self, machine: str) -> None:
        """Forgets a machine that is gone: its leases are renewed no more."""

    def complete(self, machine: str, task: str, oldest: int) -> bool:
        """Completes a group with oldest tokens of that version. Returns whether it is accepted."""

    def renew(self) -> Sequence[tuple[str, str]]:
        """Renews the leases of all machines. Returns machine and id of the tasks that a machine holds no more."""

    def sweep(self) -> None:
        """Ends leases that have run out, and cancels what is too late."""

    def drain(self, need: int) -> DrainedTasks:
        """Takes at most `need` groups into the learner's hands."""

    def advance(self, version: int, trained: Sequence[str], window: float) -> None:
        """Moves the learner to `version`, and trains and commits these tasks."""

    def publish(self, version: int) -> None:
        """Moves the pointer: from now on machines may be asked to serve `version`."""

    def counts(self) -> Counts:
        """Returns what was counted so far."""


def tokens_of(done: float) -> int:
    """Returns the tokens by which the queue sees that a partial rollout has grown: one for each unit of work, and two
    at least, so that it may have an oldest and a newest version.
    """
    return 2 + int(done) if done > 0 else 0
