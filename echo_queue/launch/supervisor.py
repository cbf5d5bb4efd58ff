"""The one place where the roles of a run are started, kept alive and ended.

- One supervisor runs per directory: it holds a lock until the last process that it started is gone.
- A role that dies is started again, after a growing pause; a role that keeps dying ends the run with its last lines.
- However the supervisor ends, SIGKILL included (`echo_queue.launch.guard`), no process that it started lives on.
- A role's output goes to `logs/<role>.log` in the directory.
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
from echo_queue.errors import DONE, HOPELESS, IDLE, REFUSED, DeadlineError, EchoQueueError, HopelessError, Problem
from echo_queue.launch import guard, log_file
from echo_queue.launch.backoff import RestartBackoff
from echo_queue.launch.reap import ending, lives, reap

# The shell reports itself to the guard and then becomes the role, without the guard's pipe. So the guard knows of a
# role even if the supervisor is killed between starting the role and reporting it.
ANNOUNCE = 'echo "$0 $$"; exec "$@" >&2'
LOCK = "lock"
"""The file of the run's directory that a supervisor keeps locked while it lives."""
POLL_S = 0.05
GONE_S = 30.0
"""The deadline for a killed process to be gone; only one that hangs in the kernel takes longer."""
TAIL_LINES = 12
TAIL_BYTES = 16_384
BACKOFF = RestartBackoff(first_pause_s=0.5, longest_pause_s=8.0, settled_s=30.0, most_ends=5)
MOST_REFUSALS = 2
"""A role is given up at this many ends in a row with exit code `REFUSED` or `IDLE`, which a further start rarely helps.

`REFUSED`: a person must act, unless a service was away. `IDLE`: a worker has waited in vain for a learner, for as long
as its settings allow, and says that its machine may be given back; the one start more is for a learner that comes late.
"""


class RoleError(EchoQueueError):
    """A role died too often. `code` is the exit code of its last process."""

    def __init__(self, *problems: Problem, code: int = REFUSED) -> None:
        super().__init__(*problems)
        self.code = code


class RunningError(EchoQueueError):
    """Another supervisor runs in this directory."""


@dataclass(frozen=True)
class Role:
    """A program to keep alive. `ends`: exit code 0 means that it is done, if `is_done` says so; else it has died.

    `grace_s`: the time that it may take to end after SIGTERM. `servers`: the other roles need it until they are gone.
    """

    name: str
    command: tuple[str, ...]
    grace_s: float = 10.0
    ends: bool = False
    servers: bool = False
    is_done: Callable[[], bool] = lambda: True


class RoleProcess(Protocol):
    """The part of `subprocess.Popen` that the supervisor uses; the process leads its own process group."""

    @property
    def pid(self) -> int: ...
    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int:
        """Raises `subprocess.TimeoutExpired`."""


Launch = Callable[[Role, Mapping[str, str], IO[bytes], IO[bytes]], RoleProcess]
"""Starts a role's process with that environment. Its output goes to the first file; before it begins, it reports its
group to the guard, which reads the second file."""


def spawn(role: Role, environ: Mapping[str, str], log: IO[bytes], to_guard: IO[bytes]) -> "subprocess.Popen[bytes]":
    """The `Launch` that runs the role's command."""
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
    """Returns the sign with which a role's group is reported to the guard (`echo_queue.launch.guard`)."""
    return "~" if role.servers else "+"


@dataclass(frozen=True)
class RoleState:
    """A role as a person sees it; `deaths` counts all of its deaths."""

    name: str
    alive: bool
    deaths: int
    done: bool


class Supervised:
    """One role and its current process."""

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
        """The role's process group, whose id is the process's own."""
        return self.process.pid if self.process else None

    def start(self, launch: Callable[[IO[bytes]], RoleProcess]) -> None:
        """Begins a section of the log, and launches the role with it."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        log_file.keep_short(self.log)
        with self.log.open("ab") as log:
            log.write(f"── {datetime.now():%Y-%m-%d %H:%M:%S} {' '.join(self.role.command)}\n".encode())
            log.flush()
            self._log_from = log.tell()
            self.process = failpoints.step("spawn role", partial(launch, log), self.role.name)
        self.started = time.monotonic()

    def signal(self, number: signal.Signals) -> None:
        """Signals the whole group, whose first process may be gone."""
        if self.group is not None:
            with suppress(ProcessLookupError, PermissionError):
                failpoints.step("signal role", partial(os.killpg, self.group, number), (self.role.name, number))

    def tail(self, lines: int) -> str:
        """Returns the last lines that the current process printed."""
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
        lock_deadline_s: float = 30.0,
        backoff: RestartBackoff = BACKOFF,
        launch: Launch = spawn,
        *,
        most_refusals: int = MOST_REFUSALS,
    ) -> None:
        self.directory = directory
        self._environ = environ
        self._lock_deadline_s = lock_deadline_s
        self._backoff = backoff
        self._launch = launch
        self._most_refusals = most_refusals
        self._roles: dict[str, Supervised] = {}
        self._lock: IO[str] | None = None
        self._guard: subprocess.Popen[bytes] | None = None
        self._interrupted = False

    def __enter__(self) -> Self:
        self.directory.mkdir(parents=True, exist_ok=True)
        self._lock = lock(self.directory, self._lock_deadline_s, self._environ.get("ECHO_QUEUE_CONFIG", "CONFIG"))
        self._guard = failpoints.step("spawn guard", partial(_spawn_guard, self._lock))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.stop_all()
        finally:
            assert self._guard and self._lock
            self._to_guard.close()
            reap(self._guard, guard.GRACE_S + 5, "the guard of the roles")
            self._lock.close()

    def start(self, *roles: Role) -> None:
        for role in roles:
            entry = self._roles[role.name] = Supervised(role, self.directory / "logs" / f"{role.name}.log")
            self._start(entry)

    def tick(self) -> None:
        """Notices deaths, and starts dead roles again.

        Raises `RoleError` for a role that keeps dying, `HopelessError` for one that says that another try is useless,
        which is not started again,
        `KeyboardInterrupt` after a signal that asked to end.
        """
        if self._interrupted:
            raise KeyboardInterrupt
        for entry in self._roles.values():
            if entry.done:
                continue
            if entry.process is None:
                if time.monotonic() >= entry.again:
                    self._start(entry)
            elif (code := entry.process.poll()) is not None:
                self._ended(entry, code)

    def wait(self, until: Callable[[], bool], deadline_s: float, what: str) -> None:
        """Keeps the roles alive until `until()` is true. Raises `DeadlineError`, which names `what`."""
        give_up = time.monotonic() + deadline_s
        while not until():
            self.tick()
            if time.monotonic() > give_up:
                raise DeadlineError(
                    Problem(
                        what, f"not reached within {deadline_s:.0f} s", f"read the logs in {self.directory / 'logs'}"
                    )
                )
            time.sleep(POLL_S)

    def knows(self, name: str) -> bool:
        """Returns whether a role of that name was started, and not stopped."""
        return name in self._roles

    def done(self, name: str) -> bool:
        return self._roles[name].done

    def last_lines(self, name: str, lines: int = 1) -> str:
        """Returns the last lines that the role's current process printed."""
        return self._roles[name].tail(lines)

    def states(self) -> list[RoleState]:
        return [
            RoleState(entry.role.name, not entry.done and entry.process is not None, entry.all_deaths, entry.done)
            for entry in self._roles.values()
        ]

    def stop(self, *names: str) -> None:
        """Sends SIGTERM to all named roles, and SIGKILL to those left after their grace; then their groups are gone."""
        stopping = [entry for entry in (self._roles.get(name) for name in names) if entry and entry.process]
        for entry in stopping:
            entry.signal(signal.SIGTERM)
        asked = time.monotonic()
        for entry in stopping:
            assert entry.process
            with suppress(subprocess.TimeoutExpired):
                entry.process.wait(max(0.0, asked + entry.role.grace_s - time.monotonic()))
            self._end(entry)
        for name in names:
            self._roles.pop(name, None)

    def stop_all(self) -> None:
        """Ends all roles: the servers last, since the other roles need them."""
        self.stop_all_but_servers()
        self.stop(*tuple(self._roles))

    def stop_all_but_servers(self) -> None:
        """Ends all roles that use the servers, which still answer then."""
        self.stop(*(name for name, entry in self._roles.items() if not entry.role.servers))

    def interrupt(self, number: int = signal.SIGINT, frame: object = None) -> None:
        """Handles a signal: the next `tick` raises KeyboardInterrupt. A second signal kills all roles but servers."""
        if self._interrupted:
            for entry in self._roles.values():
                if not entry.role.servers:
                    entry.signal(signal.SIGKILL)
        self._interrupted = True

    def pass_on(self, number: int, frame: object = None) -> None:
        """Handles a signal: each role's own process gets it, and not those that it started."""
        for entry in self._roles.values():
            if entry.process is not None:
                send = partial(os.kill, entry.process.pid, number)
                with suppress(ProcessLookupError):
                    failpoints.step("signal role", send, (entry.role.name, number))

    def _start(self, entry: Supervised) -> None:
        entry.start(lambda log: self._launch(entry.role, self._environ, log, self._to_guard))
        self._report(sign(entry.role), entry)

    @property
    def _to_guard(self) -> IO[bytes]:
        assert self._guard and self._guard.stdin
        return self._guard.stdin

    def _ended(self, entry: Supervised, code: int) -> None:
        lived_s = time.monotonic() - entry.started
        self._end(entry)
        if code == DONE and entry.role.ends and entry.role.is_done():
            entry.done = True
            return
        if code == HOPELESS:
            entry.done = entry.role.ends
            raise HopelessError(_given_up(entry, code))
        entry.all_deaths += 1
        entry.deaths = self._backoff.ends_in_a_row(entry.deaths, lived_s)
        if entry.deaths >= (self._most_refusals if code in (REFUSED, IDLE) else self._backoff.most_ends):
            raise RoleError(_given_up(entry, code), code=code)
        entry.again = time.monotonic() + self._backoff.pause_s(entry.deaths)

    def _end(self, entry: Supervised) -> None:
        """Ends the rest of the role's group, and reaps its first process."""
        entry.signal(signal.SIGKILL)
        assert entry.process
        reap(entry.process, GONE_S, f"role {entry.role.name}")
        self._report("-", entry)
        entry.process = None

    def _report(self, sign: str, entry: Supervised) -> None:
        with suppress(BrokenPipeError):
            line = f"{sign} {entry.group}\n".encode()
            failpoints.step("tell guard", partial(self._to_guard.write, line), (sign, entry.role.name))


def _spawn_guard(lock: IO[str]) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [sys.executable, "-I", "-S", str(guard.__file__)],
        stdin=subprocess.PIPE,
        bufsize=0,
        pass_fds=[lock.fileno()],
        start_new_session=True,
    )


def lock(directory: Path, deadline_s: float, config: str = "CONFIG") -> IO[str]:
    """Takes the run's lock, and waits while a killed supervisor's processes are being ended. `config`: the run's file.

    Raises `RunningError` at once if the lock's holder lives, after `deadline_s` otherwise.
    """
    file = (directory / LOCK).open("a+")
    give_up = time.monotonic() + deadline_s
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = file.read().strip()
            if (holder.isdecimal() and lives(int(holder))) or time.monotonic() > give_up:
                file.close()
                raise RunningError(
                    Problem(
                        str(directory),
                        f"is being run already, by process {holder}",
                        f"watch it with `echo-queue status {config}`, or end that process first",
                    )
                ) from None
            time.sleep(POLL_S)
        else:
            file.truncate(0)
            file.write(str(os.getpid()))
            failpoints.step("take lock", file.flush, directory)
            return file


def _given_up(entry: Supervised, code: int) -> Problem:
    tail = "\n".join(f"      {line}" for line in entry.tail(TAIL_LINES).splitlines()) or "      (it printed nothing)"
    if code in (REFUSED, HOPELESS):
        return Problem(entry.role.name, f"cannot continue:\n{tail}", "fix that, then run again: it continues")
    if code == IDLE:
        again = "start the learner, then run again: it continues"
        return Problem(entry.role.name, f"has waited in vain:\n{tail}", again)
    early = " before it was done" if code == DONE and entry.role.ends else ""
    what = f"{ending(code)}{early}, {entry.deaths} times in a row; its last lines:\n{tail}"
    return Problem(entry.role.name, what, f"fix it ({entry.log} has more), then run again: it continues")
