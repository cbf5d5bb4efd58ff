"""Runs the environment in a child process, so that a hang or a crash there is only a failed attempt here.

- `score` returns one finite reward per completion, or raises `ScoringError` with the environment's traceback.
- After a timeout or a crash the child is killed and a fresh one started.
- An environment that cannot even be made is a `ConfigError`: it would fail every task.
"""

import os
import socket
import subprocess
import sys
from multiprocessing.connection import Connection

from echo_queue import doors
from echo_queue.config import Environment as EnvironmentConfig
from echo_queue.errors import ConfigError, DeadlineError, Problem
from workers.environments import Answers
from workers.environments.child import Failed, Ready, Rewards, Unfit

START_DEADLINE_S = 120.0
"""Importing a large environment from a cold disk."""
GONE_S = 10.0
"""A killed process is gone at once, unless the machine is in trouble."""

Answer = Ready | Unfit | Rewards | Failed


class ScoringError(Exception):
    """An environment raised, hung, died or returned no rewards. The message is for the dead-letter entry."""


class Scorer:
    def __init__(self, config: EnvironmentConfig) -> None:
        """Starts the child and does not wait for it."""
        self._config = config
        self._ready = False
        self._start()

    def wait_ready(self) -> None:
        """Raises `ConfigError` if the environment cannot be had here, `DeadlineError` if it takes too long."""
        if self._ready:
            return
        try:
            answer = self._answer(START_DEADLINE_S)
        except TimeoutError:
            what = f"the {self._config.kind} environment was not ready within {START_DEADLINE_S:.0f} s"
            raise DeadlineError(Problem("environment", what, "see what its module does when imported")) from None
        except EOFError:
            code = self._process.wait(GONE_S)
            what = f"the {self._config.kind} environment's process ended with {code} while starting"
            raise ConfigError(Problem("environment", what, "see its output above")) from None
        if isinstance(answer, Unfit):
            raise ConfigError(*answer.problems)
        self._ready = True

    def score(self, answers: Answers) -> list[float]:
        """Takes at most `environment.timeout_s`, plus the start of a fresh child after a failure."""
        self.wait_ready()
        try:
            doors.take("ask scorer", lambda: self._connection.send(answers))
            answer = self._answer(self._config.timeout_s)
        except TimeoutError:
            self._restart()
            limit = f"environment.timeout_s = {self._config.timeout_s}"
            raise ScoringError(f"the environment took longer than {limit}") from None
        except (EOFError, OSError):
            code = self._restart()
            raise ScoringError(f"the environment's process ended with {code} (negative: the signal)") from None
        if isinstance(answer, Rewards):
            return answer.values
        raise ScoringError(answer.traceback if isinstance(answer, Failed) else f"unexpected answer {answer!r}")

    def close(self) -> int:
        """Kills the child. Returns its exit code, negative if a signal ended it."""
        self._connection.close()
        if self._process.poll() is None:
            doors.take("end scorer", self._process.kill)
        return self._process.wait(GONE_S)

    def _answer(self, timeout_s: float) -> Answer:
        if not self._connection.poll(timeout_s):
            raise TimeoutError
        return doors.take("hear scorer", self._connection.recv)

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        program = "import sys; from workers.environments.child import main; main(*sys.argv[1:])"
        arguments = [str(theirs.fileno()), str(os.getpid()), self._config.model_dump_json()]
        command, files = [sys.executable, "-c", program, *arguments], [theirs.fileno()]
        self._process = doors.take(
            "spawn scorer", lambda: subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=files)
        )
        theirs.close()
        self._connection: Connection[Answers, Answer] = Connection(ours.detach())
        self._ready = False

    def _restart(self) -> int:
        code = self._process.poll()
        killed = self.close()
        self._start()
        return killed if code is None else code
