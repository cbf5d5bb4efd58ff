"""Shows on a machine that a role lives: the role touches a file once a second, and `echo-queue healthy` looks at it.

- A role lives while its process runs and its engine answers. Redis and the store do not count for roles that use them:
  a role waits for these by itself, and whoever restarts it because they are away makes the outage longer.
- The file is locked for as long as its process lives. One that a killed process left behind counts for nothing.
- It lies in the folder for temporary files, which a container has to itself.
"""

import fcntl
import logging
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from echo_queue.errors import ConfigError, Problem
from echo_queue.file_lock import is_locked

EVERY_S = 1.0
LATE_S = 15.0
"""A role that touched its file longer ago than this is taken for dead."""

LivingRole = Literal["services", "submission", "worker", "learner", "controller"]
Trouble = Callable[[], str]
"""Asks a role's engine once: empty if it works, else what is wrong with it. It may block."""

log = logging.getLogger(__name__)


class LivenessFile:
    """The file of one role; making it removes those that killed processes left. Raises `ConfigError` if it cannot."""

    def __init__(self, role: LivingRole) -> None:
        try:
            _folder().mkdir(mode=0o700, exist_ok=True)
            for path in _folder().glob("[!.]*"):
                with suppress(FileNotFoundError):
                    if not is_locked(path):
                        path.unlink()
            self._file, made = tempfile.mkstemp(prefix=".", dir=_folder())
        except OSError as error:
            what = f"{error.strerror}: a role shows there that it lives"
            raise ConfigError(
                Problem(str(_folder()), what, "make it writable, or name another folder in TMPDIR")
            ) from None
        fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self._path = Path(made).rename(_folder() / f"{role}{Path(made).name}")  # seen only once it is locked

    def beat(self) -> None:
        """Says that the role lives at this instant."""
        os.utime(self._file)

    def close(self) -> None:
        self._path.unlink(missing_ok=True)
        os.close(self._file)


class LivenessThread(threading.Thread):
    """Touches the role's file while `trouble` finds nothing, from `with` to the end of its block."""

    def __init__(self, role: LivingRole, trouble: Trouble = str) -> None:
        super().__init__(name="liveness", daemon=True)
        self._file = LivenessFile(role)
        self._trouble = trouble
        self._closed = threading.Event()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closed.set()
        self._file.close()

    def run(self) -> None:
        said = ""
        while not self._closed.is_set():
            trouble = self._trouble()
            if trouble and trouble != said:
                log.warning("unhealthy: %s", trouble)
            said = trouble
            if not trouble:
                with suppress(OSError):  # it was closed meanwhile
                    self._file.beat()
            self._closed.wait(EVERY_S)


class StepClock:
    """The time that the current step of an engine has lasted; a step above `limit_s` means that the engine hangs."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._began_s: float | None = None

    @contextmanager
    def step(self) -> Iterator[None]:
        """Times what runs in the block."""
        self._began_s = time.monotonic()
        try:
            yield
        finally:
            self._began_s = None

    def trouble(self) -> str:
        """Returns what is wrong with the engine, as `Trouble` says it."""
        began_s = self._began_s
        if began_s is None or time.monotonic() - began_s <= self._limit_s:
            return ""
        return f"a step of the engine has lasted longer than {self._limit_s:g} s"


def unhealthy(role: LivingRole, late_s: float = LATE_S) -> str:
    """Returns why a process of this role on this machine is unhealthy, in a sentence; empty if all of them live."""
    ages_s = list(_ages_s(role))
    if not ages_s:
        return f"no {role} runs on this machine"
    if max(ages_s) > late_s:
        return f"{role}: has given no sign of life for {max(ages_s):.0f} s, so its process or its engine hangs"
    return ""


def _ages_s(role: LivingRole) -> Iterator[float]:
    for path in _folder().glob(f"{role}.*"):
        with suppress(FileNotFoundError):  # its process has just ended
            if is_locked(path):
                yield time.time() - path.stat().st_mtime


def _folder() -> Path:
    return Path(tempfile.gettempdir()) / f"echo-queue-{os.getuid()}"
