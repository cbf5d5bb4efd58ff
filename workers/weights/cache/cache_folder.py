"""The folder of a part cache: it belongs to one living process, and to no other program.

A folder counts as a part cache by its lock alone, and a file as a part by its name in one: foreign files are never
removed. The lock ends with its process, so that what a dead worker left can be told from a living one's and removed.
"""

import fcntl
import os
import re
from contextlib import suppress
from pathlib import Path

from echo_queue.errors import Problem, ServiceError

LOCK = ".echo-queue-part-cache"
"""A file name that no other program uses: a folder with such a file is a part cache."""
PART = "{number:06}.part"
OURS = re.compile(r"[0-9]{6,}\.part")


def lock(folder: Path, make: bool) -> int | None:
    """Takes the lock of a part cache and returns it as an open file; None if a living process holds it."""
    while True:
        if make:
            folder.mkdir(parents=True, exist_ok=True)
        try:
            if make:
                _refuse_foreign(folder)
            guard = os.open(folder / LOCK, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if make else 0), 0o600)
        except FileNotFoundError:
            if make:
                continue  # a sweep has just removed the folder
            raise
        try:
            fcntl.flock(guard, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(guard).st_ino == (folder / LOCK).stat().st_ino:
                return guard
        except BlockingIOError:
            os.close(guard)
            return None
        except FileNotFoundError:
            pass
        os.close(guard)  # a sweep took the folder away between the two calls


def _refuse_foreign(folder: Path) -> None:
    names = [path.name for path in folder.iterdir()]
    if names and LOCK not in names:
        what = f"{folder} holds {min(names)}, and is no part cache: there is no {LOCK} in it"
        raise ServiceError(Problem("weights.cache_dir", what, "name another folder, or empty this one"))


def remove_dead(folder: Path) -> None:
    """Removes a part cache whose process is gone."""
    guard = lock(folder, make=False)
    if guard is not None:
        try:
            remove(folder)
        finally:
            os.close(guard)


def remove(folder: Path) -> None:
    """Removes a part cache. The caller holds its lock. A folder with a foreign file in it stays, and stays a cache."""
    wipe(folder)
    if list(folder.iterdir()) == [folder / LOCK]:
        (folder / LOCK).unlink()
        folder.rmdir()


def wipe(folder: Path) -> None:
    """Removes the parts in a folder, and nothing else."""
    for path in list(folder.iterdir()):
        if OURS.fullmatch(path.name):
            with suppress(IsADirectoryError, PermissionError):
                path.unlink()
