"""What an embedded server leaves in its directory for whoever looks: a lock, held as long as it lives, and a log."""

import shutil
from pathlib import Path

from echo_queue.errors import Problem
from echo_queue.file_lock import is_locked

DISK_FULL_SIGNS = (
    "No space left",
    "no space left",
    "Short write while writing to the AOF",
    "Can't recover from AOF write error",
    "File too large",
)
LOG_TAIL_BYTES = 4096


class ServerDirectory:
    """The directory of one server, whoever started it."""

    def __init__(self, directory: Path) -> None:
        self.dir = directory.resolve()
        self.log = self.dir / "log"
        self.lock = self.dir / "lock"

    def alive(self) -> bool:
        """True while the server runs."""
        return self.lock.exists() and is_locked(self.lock)

    def log_tail(self) -> str:
        """Returns the last lines of the server's log."""
        try:
            with self.log.open("rb") as log:
                log.seek(max(0, self.log.stat().st_size - LOG_TAIL_BYTES))
                return log.read().decode("utf-8", "replace").strip()
        except OSError:
            return ""

    @property
    def disk_full(self) -> bool:
        """True if the last lines of its log tell of a full disk, or its disk is too full for the log to tell."""
        told = self.log_tail()
        return any(sign in told for sign in DISK_FULL_SIGNS) or self._no_space()

    def explain_end(self, what: str) -> Problem:
        """Explains from the last lines of its log why the server, which a person calls `what`, ended."""
        if self.disk_full:
            return Problem(str(self.dir), f"the {what} ended because its disk is full", "free space, then start again")
        lines = [line for line in self.log_tail().splitlines() if line.strip()]
        reason = " | ".join(lines[-3:]) or "its log is empty"
        return Problem(str(self.dir), f"the {what} ended: {reason}", f"see {self.log}")

    def _no_space(self) -> bool:
        return self.dir.exists() and shutil.disk_usage(self.dir).free < LOG_TAIL_BYTES
