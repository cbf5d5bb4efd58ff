"""Errors that speak to the person who must act: what was wrong, where, and what to do.

Every error that this project raises on purpose is an `EchoQueueError`. The command line prints its problems and exits
with its exit code, without a traceback. Any other exception is a bug and keeps its traceback.
"""

from dataclasses import dataclass
from typing import ClassVar

DONE, AGAIN, REFUSED, HOPELESS, IDLE, STOPPED = 0, 1, 2, 3, 4, 130
"""Exit codes: it is done; it failed and may be started again; a person must act, and another try helps only where a
service was away; prompts died, and will die again until the cause is fixed; a worker has waited in vain for a learner,
and its machine may be given back; Ctrl-C or SIGTERM ended it.
"""


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong. `where` is a configuration key, a file with its line, or a service."""

    where: str
    what: str
    fix: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}\n    → {self.fix}"


class EchoQueueError(Exception):
    """One or more problems, reported together."""

    exit_code: ClassVar[int] = REFUSED

    def __init__(self, *problems: Problem) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = problems


class ConfigError(EchoQueueError):
    """The configuration is wrong. This is raised before any process starts."""


class ServiceError(EchoQueueError):
    """Redis, the object store or one of their programs is missing, refuses this role, or is full."""


class PromptError(EchoQueueError):
    """A prompt set cannot be read, or is not the one of its name; `where` is the file and its line, or the queue."""

    set: str = ""
    """The name of the set, where whoever raised it knew it."""


class UnfitPromptError(PromptError):
    """A prompt is one that the model cannot take."""


class FencedError(EchoQueueError):
    """Another learner has taken over this run (a newer lineage exists), or another controller its fleet."""


class SetBackError(EchoQueueError):
    """Redis and this learner know of different moves, so it must begin again from its checkpoint.

    Redis has forgotten moves that it acknowledged, or the learner never heard that one was made.
    """


class DeadlineError(EchoQueueError):
    """A wait ran past its deadline; `where` names the thing that was waited for."""


class IdleError(DeadlineError):
    """A worker has waited in vain for a learner, and its machine is paid for to no end."""

    exit_code = IDLE


class HopelessError(EchoQueueError):
    """Prompts died, and the others would die of the same."""

    exit_code = HOPELESS
