"""Failpoints: the places where a role acts on the world around it. Each act is a *step* with a name: every move of the
queue, every request to the store, every file that must last, every message.

- An observer, if there is one, is called before and after each step; without one a failpoint costs an attribute lookup.
- `ECHO_QUEUE_CRASH_AT=<step>` (or `<step>#3`, the third time) makes the process exit right after that step. A test can
  thus end a role at every place where it can die, and see what its successor finds (docs/reliability.md).
"""

import os
from collections.abc import Callable
from typing import NoReturn, Protocol, TypeVar

VARIABLE = "ECHO_QUEUE_CRASH_AT"
CRASHED = 86
"""Exit code of a process that ended at its crash point."""

T = TypeVar("T")


class Observer(Protocol):
    """Sees the steps of this process, in the thread that takes them. A step raises what its observer raises."""

    def before(self, step: str, about: object) -> None: ...
    def after(self, step: str, about: object, answer: object) -> None: ...


class CrashPoint:
    """Ends this process right after a step: `point` is the step's name, or `name#n` for the n-th time it is taken."""

    def __init__(self, point: str) -> None:
        self.step, _, times = point.partition("#")
        self._left = int(times or 1)

    def before(self, step: str, about: object) -> None:
        pass

    def after(self, step: str, about: object, answer: object) -> None:
        if step == self.step:
            self._left -= 1
            if self._left == 0:
                self._end()

    def _end(self) -> NoReturn:
        os._exit(CRASHED)


observer: Observer | None = CrashPoint(os.environ[VARIABLE]) if VARIABLE in os.environ else None


def step(name: str, action: Callable[[], T], about: object = None) -> T:
    """Takes the step `name`: runs `action` and returns its answer. `about` tells an observer what the step concerns."""
    seen_by = observer  # another thread may remove it meanwhile
    if seen_by is None:
        return action()
    seen_by.before(name, about)
    answer = action()
    seen_by.after(name, about, answer)
    return answer
