"""The end of a process: a wait for it, within a deadline whose error names the process, and words for its exit code."""

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
