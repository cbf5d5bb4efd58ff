"""The one place where the roles of a run are started, kept alive and ended.

- One supervisor per directory: a lock, held until the last process it started is gone.
- A role that dies is started again, after a growing pause; one that keeps dying ends the run with its last lines.
- However the supervisor ends, SIGKILL included (`echo_queue.launch.guard`), nothing it started lives on.
- What a role prints goes to `logs/<role>.log` in the directory.
"""

import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import IO, Protocol, Self

from echo_queue import failpoints
from echo_queue.errors import DeadlineError, EchoQueueError, Problem
from echo_queue.launch import guard
from echo_queue.launch.backoff import RestartBackoff
from echo_queue.launch.reap import reap

# The shell names itself to the guard and then becomes the role. Its own end of the guard's pipe is closed by then, so
# a supervisor that is killed between starting a role and telling of it leaves nothing that nobody would end.
ANNOUNCE = 'echo "$0 $$"; exec "$@" >&2'
POLL_S = 0.05
GONE_S = 30.0
"""A killed process is gone soon, unless it hangs in the kernel."""
TAIL_LINES = 12
TAIL_BYTES = 16_384
BACKOFF = RestartBackoff(first_pause_s=0.5, longest_pause_s=8.0, settled_s=30.0, most_ends=5)
MOST_REFUSALS = 2
"""A role is given up at this many ends in a row with exit code 2, which says that a person must act: another try helps
only where a service was away."""


class RoleError(EchoQueueError):
    """A role died too often."""


class RunningError(EchoQueueError):
    """Another supervisor runs in this directory."""


@dataclass(frozen=True)
class Role:
    """A program to keep alive. `ends`: exit code 0 is its end; otherwise any exit is a death.

    `grace_s`: how long it may take after SIGTERM. `servers`: others need it until they are gone.
    """

    name: str
    command: tuple[str, ...]
    grace_s: float = 10.0
    ends: bool = False
    servers: bool = False


class RoleProcess(Protocol):
    """What is needed of a `subprocess.Popen` that leads its own process group."""

    @property
    def pid(self) -> int: ...
    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int:
        """Raises `subprocess.TimeoutExpired`."""


Launch = Callable[[Role, Mapping[str, str], IO[bytes], IO[bytes]], RoleProcess]
"""Starts a role's process with that environment; what it prints goes to the first file. The process names its group
to the guard, which reads the second file, before it begins."""


def spawn(role: Role, environ: Mapping[str, str], log: IO[bytes], to_guard: IO[bytes]) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        ["/bin/sh", "-c", ANNOUNCE, sign(role), *role.command],
        env=dict(environ),
        stdin=subprocess.DEVNULL,
        stdout=to_guard,
        stderr=log,
        # A Ctrl-C at the terminal is the supervisor's; it ends the roles in order.
        start_new_session=True,
    )


def sign(role: Role) -> str:
    """How the guard is told of a role's group (`echo_queue.launch.guard`)."""
    return "~" if role.servers else "+"


@dataclass(frozen=True)
class RoleState:
    name: str
    alive: bool
    deaths: int
    done: bool


class Supervised:
    """One role's present life."""

    def __init__(self, role: Role, log: Path) -> None:
        self.role = role
        self.log = log
        self.process: RoleProcess | None = None
        self.done = False
        self.deaths = 0
        """Deaths in a row (`RestartBackoff.ends_in_a_row`)."""
        self.all_deaths = 0
        self.started = self.again = time.monotonic()
        self._log_from = 0

    @property
    def group(self) -> int | None:
        """Its process group, which has the process's own id."""
        return self.process.pid if self.process else None

    def start(self, launch: Callable[[IO[bytes]], RoleProcess]) -> None:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            log.write(f"── {datetime.now():%Y-%m-%d %H:%M:%S} {' '.join(self.role.command)}\n".encode())
            log.flush()
            self._log_from = log.tell()
            self.process = failpoints.step("spawn role", partial(launch, log), self.role.name)
        self.started = time.monotonic()

    def signal(self, number: signal.Signals) -> None:
        """To the whole group, whose first process may be gone."""
        if self.group is not None:
            with suppress(ProcessLookupError, PermissionError):
                failpoints.step("signal role", partial(os.killpg, self.group, number), (self.role.name, number))

    def tail(self, lines: int) -> str:
        """The last lines of this life."""
        with self.log.open("rb") as log:
            end = log.seek(0, os.SEEK_END)
            log.seek(max(self._log_from, end - TAIL_BYTES))
            printed = log.read().decode("utf-8", "replace").rstrip().splitlines()
        return "\n".join(printed[-lines:])


class Supervisor:
    """Keeps roles alive while its methods are called; use it as a context manager."""

    def __init__(
        self,
        directory: Path,
        environ: Mapping[str, str] = os.environ,
        lock_patience_s: float = 30.0,
        backoff: RestartBackoff = BACKOFF,
        launch: Launch = spawn,
        *,
        most_refusals: int = MOST_REFUSALS,
    ) -> None:
        self.directory = directory
        self._environ = environ
        self._lock_patience_s = lock_patience_s
        self._backoff = backoff
        self._launch = launch
        self._most_refusals = most_refusals
        self._kept: dict[str, Supervised] = {}
        self._lock: IO[str] | None = None
        self._guard: subprocess.Popen[bytes] | None = None
        self._interrupted = False

    def __enter__(self) -> Self:
        self.directory.mkdir(parents=True, exist_ok=True)
        self._lock = lock(self.directory, self._lock_patience_s)
        self._guard = failpoints.step("spawn guard", partial(_spawn_guard, self._lock))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.stop_all()
        finally:
            assert self._guard and self._guard.stdin and self._lock
            self._guard.stdin.close()
            reap(self._guard, guard.GRACE_S + 5, "the guard of the roles")
            self._lock.close()

    def start(self, *roles: Role) -> None:
        for role in roles:
            kept = self._kept[role.name] = Supervised(role, self.directory / "logs" / f"{role.name}.log")
            self._start(kept)

    def tick(self) -> None:
        """Notices deaths and starts again what died.

        Raises `RoleError` for what keeps dying, `KeyboardInterrupt` where a signal asked to end.
        """
        if self._interrupted:
            raise KeyboardInterrupt
        for kept in self._kept.values():
            if kept.done:
                continue
            if kept.process is None:
                if time.monotonic() >= kept.again:
                    self._start(kept)
            elif (code := kept.process.poll()) is not None:
                self._ended(kept, code)

    def wait(self, until: Callable[[], bool], deadline_s: float, what: str) -> None:
        """Keeps the roles alive until `until()`. `what` is named by the `DeadlineError`."""
        give_up = time.monotonic() + deadline_s
        while not until():
            self.tick()
            if time.monotonic() > give_up:
                raise DeadlineError(
                    Problem(what, f"not reached within {deadline_s:.0f} s", f"look into {self.directory / 'logs'}")
                )
            time.sleep(POLL_S)

    def done(self, name: str) -> bool:
        return self._kept[name].done

    def last_line(self, name: str) -> str:
        """What the role printed last in its present life."""
        return self._kept[name].tail(lines=1)

    def states(self) -> list[RoleState]:
        return [
            RoleState(kept.role.name, kept.process is not None and not kept.done, kept.all_deaths, kept.done)
            for kept in self._kept.values()
        ]

    def stop(self, *names: str) -> None:
        """SIGTERM to all of them, SIGKILL to what is left after its grace; then their groups are gone."""
        stopping = [kept for kept in (self._kept.get(name) for name in names) if kept and kept.process]
        for kept in stopping:
            kept.signal(signal.SIGTERM)
        asked = time.monotonic()
        for kept in stopping:
            assert kept.process
            with suppress(subprocess.TimeoutExpired):
                kept.process.wait(max(0.0, asked + kept.role.grace_s - time.monotonic()))
            self._bury(kept)
        for name in names:
            self._kept.pop(name, None)

    def stop_all(self) -> None:
        """First those that work, then the servers they work with."""
        self.stop(*(name for name, kept in self._kept.items() if not kept.role.servers))
        self.stop(*tuple(self._kept))

    def interrupt(self, number: int = signal.SIGINT, frame: object = None) -> None:
        """A signal handler. First, the next `tick` raises KeyboardInterrupt; again, all but servers are killed."""
        if self._interrupted:
            for kept in self._kept.values():
                if not kept.role.servers:
                    kept.signal(signal.SIGKILL)
        self._interrupted = True

    def _start(self, kept: Supervised) -> None:
        assert self._guard and self._guard.stdin
        pipe = self._guard.stdin
        kept.start(lambda log: self._launch(kept.role, self._environ, log, pipe))
        self._tell(sign(kept.role), kept)

    def _ended(self, kept: Supervised, code: int) -> None:
        lived_s = time.monotonic() - kept.started
        self._bury(kept)
        if code == 0 and kept.role.ends:
            kept.done = True
            return
        kept.all_deaths += 1
        kept.deaths = self._backoff.ends_in_a_row(kept.deaths, lived_s)
        if kept.deaths >= (self._most_refusals if code == 2 else self._backoff.most_ends):
            raise RoleError(_given_up(kept, code))
        kept.again = time.monotonic() + self._backoff.pause_s(kept.deaths)

    def _bury(self, kept: Supervised) -> None:
        """Ends what is left of the role's group and reaps its first process."""
        kept.signal(signal.SIGKILL)
        assert kept.process
        reap(kept.process, GONE_S, f"role {kept.role.name}")
        self._tell("-", kept)
        kept.process = None

    def _tell(self, sign: str, kept: Supervised) -> None:
        assert self._guard and self._guard.stdin
        with suppress(BrokenPipeError):
            self._guard.stdin.write(f"{sign} {kept.group}\n".encode())
            failpoints.step("tell guard", self._guard.stdin.flush, (sign, kept.role.name))


def _spawn_guard(lock: IO[str]) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [sys.executable, "-I", "-S", str(guard.__file__)],
        stdin=subprocess.PIPE,
        pass_fds=[lock.fileno()],
        start_new_session=True,
    )


def lock(directory: Path, patience_s: float) -> IO[str]:
    """Takes the run's lock, waiting while a killed supervisor's processes are being ended.

    Raises `RunningError` at once where its holder lives, after `patience_s` otherwise.
    """
    file = (directory / "lock").open("a+")
    give_up = time.monotonic() + patience_s
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = file.read().strip()
            if _process_lives(holder) or time.monotonic() > give_up:
                file.close()
                raise RunningError(
                    Problem(
                        str(directory),
                        f"is being run already, by process {holder}",
                        "watch it with `echo-queue status`",
                    )
                ) from None
            time.sleep(POLL_S)
        else:
            file.truncate(0)
            file.write(str(os.getpid()))
            failpoints.step("take lock", file.flush, directory)
            return file


def _process_lives(pid: str) -> bool:
    if not pid.isdecimal():
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _given_up(kept: Supervised, code: int) -> Problem:
    tail = "\n".join(f"      {line}" for line in kept.tail(TAIL_LINES).splitlines()) or "      (it printed nothing)"
    if code == 2:
        return Problem(kept.role.name, f"cannot go on:\n{tail}", "fix that, then run again: it continues")
    what = f"{_how(code)}, {kept.deaths} times in a row; its last lines:\n{tail}"
    return Problem(kept.role.name, what, f"fix it ({kept.log} has more), then run again: it continues")


def _how(code: int) -> str:
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
