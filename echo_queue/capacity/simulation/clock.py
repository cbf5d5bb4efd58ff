"""The simulated clock: what is to happen is kept in order of time, and each step moves the clock to the next of it.

What is to happen at the same time happens in the order in which it was noted, so a simulation always runs the same.
"""

import heapq
from collections.abc import Callable

Action = Callable[[], None]


class Clock:
    """Seconds since the simulation began."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._noted = 0
        self._coming: list[tuple[float, int, Action]] = []

    def at(self, when_s: float, action: Action) -> None:
        """Notes an action for a time that is not past."""
        self._noted += 1
        heapq.heappush(self._coming, (when_s, self._noted, action))

    def after(self, seconds: float, action: Action) -> None:
        self.at(self.now_s + seconds, action)

    def next(self) -> Action:
        """Moves to the time of the next action, and returns it. Raises `IndexError` if nothing is to happen."""
        self.now_s, _, action = heapq.heappop(self._coming)
        return action
