"""Runs the environment in a child process, so that a hang or a crash there is only a failed attempt here.

- `score` returns one finite reward per completion, `reply` an observation or the reward of one sample; or they raise
  `ScoringError` with the environment's traceback.
- After a timeout or a crash the child is killed and a new one is started.
- An environment that cannot be made at all is a `ConfigError`, since it would fail every task.
"""

import os
import socket
import subprocess
from collections.abc import Callable, Sequence
from typing import TypeVar

from echo_queue import failpoints
from echo_queue.config import INTERACTIVE
from echo_queue.config import Environment as EnvironmentConfig
from echo_queue.errors import ConfigError, DeadlineError, Problem
from echo_queue.launch.import_path import PYTHON
from echo_queue.launch.reap import reap
from workers.environments.child import (
    Answer,
    Failed,
    Rewards,
    Unfit,
    answer_of,
    checked_reply,
    checked_rewards,
)
from workers.environments.pipe import Pipe
from workers.environments.protocol import Reply, ScoringRequest, Turn
from workers.environments.tracebacks import Frame

START_DEADLINE_S = 120.0
"""Long enough to import a large environment from a cold disk."""
GONE_S = 10.0
"""A killed process is gone at once, unless the machine is in trouble."""

T = TypeVar("T")


class ScoringError(Exception):
    """The environment raised, hung, died or returned no rewards. The message is the reason of the failed attempt.

    `frames`: where in the user's module it raised, the innermost frame last.
    """

    def __init__(self, reason: str, frames: Sequence[Frame] = ()) -> None:
        super().__init__(reason)
        self.frames = tuple(frames)


class Scorer:
    """The parent's side of the scoring process. One thread uses it at a time."""

    def __init__(self, config: EnvironmentConfig) -> None:
        """Starts the child, without waiting for it."""
        self._config = config
        self.interactive = config.kind in INTERACTIVE
        self._ready = False
        self._start()

    def wait_ready(self) -> None:
        """Waits for the environment. Raises `ConfigError` if it cannot be made, `DeadlineError` if that is too slow."""
        if self._ready:
            return
        try:
            answer = self._answer(START_DEADLINE_S)
        except TimeoutError:
            what = f"the {self._config.kind} environment was not ready within {START_DEADLINE_S:.0f} s"
            raise DeadlineError(Problem("environment", what, "check what its module does when imported")) from None
        except EOFError:
            code = reap(self._process, GONE_S, "the environment's process")
            what = f"the {self._config.kind} environment's process ended with {code} while starting"
            raise ConfigError(Problem("environment", what, "see its output above")) from None
        if isinstance(answer, Unfit):
            raise ConfigError(*answer.problems)
        self._ready = True

    def score(self, request: ScoringRequest) -> list[float]:
        """Scores completions within `environment.timeout_s`, plus the start of a new child after a failure."""

        def rewards(answer: Answer) -> list[float] | None:
            return checked_rewards(answer.values, len(request.completions)) if isinstance(answer, Rewards) else None

        return self._ask(request, rewards)

    def reply(self, turn: Turn) -> Reply:
        """Returns an interactive environment's reply to a turn, within the time that `score` may take."""
        return self._ask(turn, lambda answer: checked_reply(answer) if isinstance(answer, Reply) else None)

    def _ask(self, question: ScoringRequest | Turn, expected: Callable[[Answer], T | None]) -> T:
        """Asks the child. `expected` converts an answer of the right kind, and returns None for any other."""
        self.wait_ready()
        try:
            failpoints.step("ask scorer", lambda: self._pipe.send(question, self._config.timeout_s))
            answer = self._answer(self._config.timeout_s)
            if (result := expected(answer)) is not None:
                return result
        except TimeoutError:
            self._restart()
            limit = f"environment.timeout_s = {self._config.timeout_s}"
            raise ScoringError(f"the environment took longer than {limit}") from None
        except ValueError as error:
            self._restart()
            raise ScoringError(f"the environment's process wrote into the scorer's pipe: {error}") from None
        except (EOFError, OSError):
            code = self._restart()
            raise ScoringError(f"the environment's process ended with {code} (negative: the signal)") from None
        if isinstance(answer, Failed):
            raise ScoringError(answer.traceback, answer.frames)
        raise ScoringError(f"unexpected answer {answer!r}")

    def close(self) -> int:
        """Kills the child. Returns its exit code, negative if a signal ended it."""
        self._pipe.close()
        if self._process.poll() is None:
            failpoints.step("end scorer", self._process.kill)
        return reap(self._process, GONE_S, "the environment's process")

    def _answer(self, timeout_s: float) -> Answer:
        return answer_of(failpoints.step("hear scorer", lambda: self._pipe.receive(timeout_s)))

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        self._process = failpoints.step("spawn scorer", lambda: self._spawn(theirs))
        theirs.close()
        self._pipe = Pipe(ours)
        self._ready = False

    def _spawn(self, connection: socket.socket) -> "subprocess.Popen[bytes]":
        program = "import sys; from workers.environments.child import main; main(*sys.argv[1:])"
        arguments = [str(connection.fileno()), str(os.getpid()), self._config.model_dump_json()]
        return subprocess.Popen(
            [*PYTHON, "-c", program, *arguments], stdin=subprocess.DEVNULL, pass_fds=[connection.fileno()]
        )

    def _restart(self) -> int:
        code = self._process.poll()
        killed = self.close()
        self._start()
        return killed if code is None else code
