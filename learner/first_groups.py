"""Ends a run whose first prompts all die, while the learner waits for its first batch."""

import time

from echo_queue.queue import Monitor
from echo_queue.queue.dead_causes import check_first_groups

EVERY_S = 1.0


class FirstGroups:
    """Looks every `EVERY_S` at what became of the first prompts, until a group is completed."""

    def __init__(self, monitor: Monitor) -> None:
        self._monitor = monitor
        self._due = time.monotonic()
        self._completed = False

    def check(self) -> None:
        """Raises `HopelessError` once the first prompts have died."""
        if self._completed or time.monotonic() < self._due:
            return
        self._completed = check_first_groups(self._monitor)
        self._due = time.monotonic() + EVERY_S
