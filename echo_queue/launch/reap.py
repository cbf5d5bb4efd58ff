"""The end of a process: whether it has come, a wait for it with a deadline, and words for its exit code."""

import os
import signal
import subprocess
from typing import Protocol

from echo_queue.errors import DeadlineError, Problem


class Ending(Protocol):
    """The part of `subprocess.Popen` that `reap` uses."""

    @property
    def pid(self) -> int: ...
    def wait(self, timeout: float | None = None) -> int: ...


def reap(process: Ending, deadline_s: float, what: str) -> int:
    """Returns the exit code. Raises `DeadlineError`: a killed process lives on only while the kernel holds it."""
    try:
        return process.wait(deadline_s)
    except subprocess.TimeoutExpired:
        fix = "see what it waits for (`ps -o stat,wchan`): a disk or mount that hangs holds even a killed process"
        raise DeadlineError(
            Problem(f"{what} (pid {process.pid})", f"has not ended in {deadline_s:.0f} s", fix)
        ) from None


def ending(code: int) -> str:
    """Says how a process ended, by its exit code as `subprocess` gives it."""
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


def lives(pid: int) -> bool:
    """Returns whether there is such a process, of whatever user."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
