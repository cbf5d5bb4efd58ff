"""Processes of this machine as a fleet, for trying one out and for a big node: each "machine" is one worker process.

- A process holds a lock in the folder of its name for as long as it lives, so it is found again whoever started it, and
  it goes on when the controller ends. The lock's file then still has its number: the name is used.
- A second `end` after `grace_s` kills what is still there.
"""

import fcntl
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import IO, Protocol

from echo_queue import failpoints
from echo_queue.errors import Problem
from echo_queue.file_lock import is_locked, noting_itself
from echo_queue.fleet.drivers.protocol import DriverError, Quote
from echo_queue.fleet.state import Machine

HELD_S, POLL_S = 2.0, 0.01
"""The time for which a name's lock may be held before its holder has said its number."""
Command = Callable[[str, str], Sequence[str]]
"""The command line of the worker of a machine, by its name and its pool."""


class MachineProcess(Protocol):
    """The part of `subprocess.Popen` that the driver uses; the process leads its own process group."""

    def poll(self) -> int | None: ...


Launch = Callable[[Sequence[str], Mapping[str, str], IO[str], IO[bytes]], MachineProcess]
"""Starts a command with that environment. The process keeps the first file open, whose lock it holds, for as long as it
lives, and notes its number there before it begins; its output goes to the second one."""


def spawn(
    command: Sequence[str], environ: Mapping[str, str], lock: IO[str], log: IO[bytes]
) -> "subprocess.Popen[bytes]":
    """The `Launch` that runs the command as a program."""
    return subprocess.Popen(
        noting_itself(lock.name, command),
        env=dict(environ),
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        pass_fds=[lock.fileno()],
        start_new_session=True,
    )


class LocalDriver:
    """Machines below `folder`: `<pool>/<name>/lock` and `log`."""

    def __init__(
        self,
        folder: Path,
        command: Command,
        *,
        grace_s: float,
        environ: Mapping[str, str] = os.environ,
        launch: Launch = spawn,
    ) -> None:
        self._folder = folder
        self._command = command
        self._grace_s = grace_s
        self._environ = environ
        self._launch = launch
        self._children: list[MachineProcess] = []

    def machines(self) -> tuple[Machine, ...]:
        self._children = [child for child in self._children if child.poll() is None]
        return tuple(Machine(path.parent.name, path.parent.parent.name) for path in self._locks() if is_locked(path))

    def start(self, name: str, pool: str) -> bool:
        folder = self._folder / pool / name
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "lock").open("a+") as lock:
            if self._is_fresh(lock):
                failpoints.step("start machine", partial(self._spawn, name, pool, lock), name)
        return True

    def end(self, names: Sequence[str]) -> None:
        for path in self._locks():
            if path.parent.name in names and is_locked(path):
                failpoints.step("end machine", partial(self._end, path), path.parent.name)

    def offers(self) -> Mapping[str, Quote]:
        return {}

    def _is_fresh(self, lock: IO[str]) -> bool:
        """Takes the lock of a name that was never used; returns False for any other.

        Whoever lists machines takes their locks for a moment.
        """
        give_up = time.monotonic() + HELD_S
        while True:
            held = not _locked(lock)
            lock.seek(0)
            if lock.read():
                return False
            if not held:
                return True
            if time.monotonic() > give_up:
                what = "its lock is held, and nobody says by which process"
                raise DriverError(Problem(lock.name, what, "see which process has it open, and end it"))
            time.sleep(POLL_S)

    def _locks(self) -> Iterator[Path]:
        return self._folder.glob("*/*/lock")

    def _spawn(self, name: str, pool: str, lock: IO[str]) -> None:
        own = {"ECHO_QUEUE_ROLLOUT__POOL": pool, "ECHO_QUEUE_ROLLOUT__MACHINE": name}
        with Path(lock.name).with_name("log").open("ab") as log:
            self._children.append(self._launch(self._command(name, pool), {**self._environ, **own}, lock, log))

    def _end(self, path: Path) -> None:
        """Asks the process to end, and notes when; kills it if it was asked `grace_s` ago.

        One that has not noted its number yet is asked by the next call.
        """
        asked = path.with_name("asked")
        number = signal.SIGTERM
        if asked.exists():
            if time.time() - asked.stat().st_mtime < self._grace_s:
                return
            number = signal.SIGKILL
        if text := path.read_text().strip():
            with suppress(ProcessLookupError):
                os.killpg(int(text), number)
            asked.touch()


def _locked(lock: IO[str]) -> bool:
    """Takes the lock; returns False if a process holds it."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
