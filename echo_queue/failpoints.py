"""The doors through which a role reaches the world: every move of the queue, every request to the store, every file
that must last, every message. Each passage is a *step* with a name.

- An observer, if there is one, is told before each step and after it; without one a door costs an attribute lookup.
- `ECHO_QUEUE_CRASH_AT=<step>` (or `<step>#3`: the third passage) makes the process exit right after that step, so that
  what the next one finds can be tested at every place where a role can die (docs/reliability.md).
"""

import os
from collections.abc import Callable
from typing import NoReturn, Protocol, TypeVar

VARIABLE = "ECHO_QUEUE_CRASH_AT"
CRASHED = 86
"""Exit code of a process that ended at its crash point."""

T = TypeVar("T")


class Observer(Protocol):
    """Sees the steps of this process, from whichever thread takes them. What it raises, the step raises."""

    def before(self, step: str, about: object) -> None: ...
    def after(self, step: str, about: object, answer: object) -> None: ...


class CrashPoint:
    """Ends this process right after the `passage`th time that `step` was taken."""

    def __init__(self, place: str) -> None:
        self.step, _, passage = place.partition("#")
        self._left = int(passage or 1)

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
    """The answer of `action`, which is the step `name`; `about` tells an observer what it concerns."""
    if observer is None:
        return action()
    observer.before(name, about)
    answer = action()
    observer.after(name, about, answer)
    return answer
