"""Waits for a process that was asked to end, within a deadline whose error names it."""

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
