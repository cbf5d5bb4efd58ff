"""Simulated machines: each holds groups, whose work passes at the speed that so many groups at once leave to each.

All groups of a machine get on equally fast, so a machine needs one account of the work that has passed, and the group
that ends next is the one whose end on that account comes first.
"""

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from echo_queue.capacity.simulation.moves import Leased
from echo_queue.queue.rhythm import room_for

NEARLY = 1e-6
"""Work that counts as none, because the account of it is rounded."""


@dataclass(eq=False, slots=True)
class Rollout:
    """A group on a machine. `ends`: where its end is on the machine's account of work; `began`: where it began here."""

    leased: Leased
    work: float
    oldest: int
    began: float
    ends: float
    stored: float = 0.0
    """How much of it is done by the partial rollout that is stored."""


@dataclass(eq=False)
class Fetching:
    """The weights of a pool's machines: the version that they serve, and the one that is on its way to them."""

    fetch_s: float
    serving: int = 0
    coming: int | None = None
    waiting: dict["SimulatedMachine", None] = field(default_factory=dict)
    """Machines that have tasks which need newer weights."""


@dataclass(eq=False)
class SimulatedMachine:
    """One machine. `steps_s`: seconds of a unit of work with 1, 2, … groups, as many as it may hold."""

    name: str
    pool: int
    steps_s: Sequence[float]
    weights: Fetching
    began_s: float = 0.0
    up: bool = True
    hungry: bool = False
    """True while it waits to be told that tasks have come."""
    pending: tuple[int, list[Leased]] | None = None
    """Leased tasks that wait for weights of that version."""
    rollouts: dict[str, Rollout] = field(default_factory=dict)
    appointment: float = math.inf
    """When the world looks at it next."""
    _ends: list[tuple[float, int, Rollout]] = field(default_factory=list)
    _passed: float = 0.0
    """The account of work, as of `_at_s`."""
    _at_s: float = 0.0
    _count: int = 0

    @property
    def held(self) -> int:
        return len(self.rollouts) + (len(self.pending[1]) if self.pending else 0)

    def room(self, most: int) -> int:
        """Returns the number of tasks to lease now, to hold `most`; 0 while some wait for weights, or few would fit."""
        return 0 if not self.up or self.pending else room_for(most, len(self.rollouts))

    def pass_time(self, now_s: float) -> None:
        """Brings the account of work up to now."""
        if self.rollouts:
            self._passed += (now_s - self._at_s) / self.steps_s[len(self.rollouts) - 1]
        self._at_s = now_s

    def begin(self, leased: Leased, work: float, oldest: int) -> None:
        """Begins a group. Call it once time has passed."""
        ends = self._passed + max(work - leased.done, 0.0)
        rollout = Rollout(leased, work, oldest, self._passed, ends, leased.done)
        self.rollouts[leased.task] = rollout
        self._count += 1
        heapq.heappush(self._ends, (ends, self._count, rollout))

    def drop(self, task: str) -> Rollout:
        """Ends a group before its time. Call it once time has passed."""
        return self.rollouts.pop(task)

    def done(self, rollout: Rollout) -> float:
        """Returns how much of a group is done, with what another machine did before. Call it once time has passed."""
        return min(rollout.leased.done + self._passed - rollout.began, rollout.work)

    @property
    def next_end_s(self) -> float:
        """When its next group ends, if no other begins or is dropped before; infinite if it has none."""
        while self._ends and self.rollouts.get(self._ends[0][2].leased.task) is not self._ends[0][2]:
            heapq.heappop(self._ends)
        if not self._ends:
            return math.inf
        left = max(0.0, self._ends[0][0] - self._passed)
        return self._at_s + left * self.steps_s[len(self.rollouts) - 1]

    def ended(self) -> list[Rollout]:
        """Takes the groups that have ended off the machine. Call it once time has passed."""
        ended: list[Rollout] = []
        while self.rollouts and self._ends and self._ends[0][0] <= self._passed + NEARLY:
            rollout = heapq.heappop(self._ends)[2]
            if self.rollouts.get(rollout.leased.task) is rollout:
                ended.append(self.rollouts.pop(rollout.leased.task))
        return ended
