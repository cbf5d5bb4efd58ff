"""A call of the environment: a question of the worker, until it is answered."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from workers.environments.protocol import Reply, Rewards, ScoringRequest, Turn
from workers.environments.tracebacks import Frame


class ScoringError(Exception):
    """The environment raised, hung, died or returned no rewards. The message is the reason of the failed attempt.

    `frames`: where in the user's module it raised, the innermost frame last.
    """

    def __init__(self, reason: str, frames: Sequence[Frame] = ()) -> None:
        super().__init__(reason)
        self.frames = tuple(frames)


@dataclass(eq=False)
class Call:
    """`age`: calls of smaller ages go first. `session`: calls of one session go to one process. `about`: the asker's.

    `alone`: the process that had this call together with others has ended, so it goes to one that has no other.
    """

    question: ScoringRequest | Turn
    age: float = 0.0
    session: Hashable = None
    about: Any = None
    alone: bool = False
    asked_s: float = 0.0
    """When the worker asked (monotonic clock)."""
    late_s: float = 0.0
    """When the answer of the process that has the call is late."""
    within: tuple[str, ...] = ()
    """The reward functions that the process that has the call is in, where there are several."""
    answer: Rewards | Reply | ScoringError | None = None

    def unanswered(self, reason: str) -> ScoringError:
        """Returns the error of a call that no answer ended. It ends with the names of functions, as `Failed` does."""
        said = f" (reward {' and '.join(self.within)})" if self.within else ""
        return ScoringError(reason + said)

    @property
    def rewards(self) -> Rewards:
        """The answer to a `ScoringRequest`. Raises `ScoringError`."""
        if isinstance(self.answer, Rewards):
            return self.answer
        raise self._error()

    @property
    def reply(self) -> Reply:
        """The answer to a `Turn`. Raises `ScoringError`."""
        if isinstance(self.answer, Reply):
            return self.answer
        raise self._error()

    def _error(self) -> ScoringError:
        return self.answer if isinstance(self.answer, ScoringError) else ScoringError(f"no answer: {self.answer!r}")
