"""Files whose lock says that a process lives, because it holds the lock for as long as it does."""

import fcntl
from collections.abc import Sequence
from pathlib import Path

# The shell notes its number in the lock's file and becomes the program, which keeps the lock.
BECOME = 'echo $$ > "$1"; shift; exec "$@"'


def is_locked(path: Path) -> bool:
    """Returns whether a process holds the lock of this file. Raises `OSError` if there is no file.

    It takes a shared lock for a moment, so that two processes that only look do not take each other for the holder.
    """
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def noting_itself(lock: str, words: Sequence[str]) -> list[str]:
    """Returns the command that runs `words` as a process whose number the file `lock` has.

    It is to be started with the locked file open, so that a held lock always names its holder.
    """
    return ["/bin/sh", "-c", BECOME, "sh", lock, *words]
