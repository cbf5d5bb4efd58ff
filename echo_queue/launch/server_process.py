"""One server program per directory, on a port of the loopback interface: started, found again and ended.

The server inherits a lock on `<dir>/lock`, so the lock is held exactly as long as the server lives, whatever becomes of
the process that started it. A second start in the same directory therefore finds the running server instead of starting
another. The server's output goes to `<dir>/log`.
"""

import fcntl
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import IO

from echo_queue import failpoints
from echo_queue.atomic_file import write_atomically
from echo_queue.errors import DeadlineError, Problem, ServiceError
from echo_queue.launch import log_file
from echo_queue.launch.file_lock import is_locked, noting_itself

HOST = "127.0.0.1"
PORT_ATTEMPTS = 3
PORT_TAKEN = "address already in use"
"""The log's words, in lower case, when another program took the port between our check and the server's start."""
DISK_FULL_SIGNS = (
    "No space left",
    "no space left",
    "Short write while writing to the AOF",
    "Can't recover from AOF write error",
    "File too large",
)
POLL_S = 0.02
GONE_S = 30.0
LOG_TAIL_BYTES = 4096


Ready = Callable[[], None]
"""Returns once the server at `port` serves. Raises `ServiceError` if it ended, `DeadlineError` if it is late."""
Probe = Callable[[], str]
"""Asks the server at `port` once: empty if it serves, else why not yet. Raises `ServiceError` if it never will."""


class ServerProcess:
    """The server of one directory; `port` and `pid` are known once it was joined or launched."""

    def __init__(self, directory: Path) -> None:
        self.dir = directory.resolve()
        self.log = self.dir / "log"
        self.pid: int | None = None
        self.port = 0
        self._lock = self.dir / "lock"
        self._port = self.dir / "port"
        self._child: subprocess.Popen[bytes] | None = None

    def join(self, ready: Ready) -> bool:
        """Returns True if this directory's server runs already and is ready.

        A server that is being killed is still found for a moment; it counts as not running.
        """
        if not self.attach():
            return False
        self.port = int(self._port.read_text())
        try:
            ready()
        except ServiceError:
            if self.alive():
                raise
            return False
        return True

    def serve(
        self,
        argv: Callable[[int], Sequence[str]],
        ready: Ready,
        environ: Mapping[str, str] | None = None,
        *,
        hidden: bool = False,
    ) -> None:
        """Launches `argv(port)`, at the port that the server had before if that is free; returns when it is ready.

        `environ`: all variables of the server; by default those of this process.
        `hidden`: at another port, which no client knows.
        """
        self.dir.mkdir(parents=True, exist_ok=True)
        for attempt in range(PORT_ATTEMPTS):
            self.port = free_port() if hidden else self._known_port()
            if not hidden:  # clients reconnect to the port they know
                write_atomically(self._port, str(self.port).encode(), "port")
            self.launch(argv(self.port), environ)
            try:
                ready()
                return
            except ServiceError:
                if attempt + 1 == PORT_ATTEMPTS or PORT_TAKEN not in self.log_tail().lower():
                    raise

    def await_ready(self, probe: Probe, deadline_s: float, what: str) -> None:
        """Returns once `probe` finds that the server, which a person calls `what`, serves.

        Raises `ServiceError` if the server ends, `DeadlineError` if it is not ready in time.
        """
        give_up, missing = time.monotonic() + deadline_s, "it does not listen yet"
        while time.monotonic() < give_up:
            if not (missing := probe()):
                return
            if not self.alive():
                raise ServiceError(self.explain_end(what))
            time.sleep(POLL_S)
        late = f"the {what} was not ready after {deadline_s:.0f} s: {missing}"
        raise DeadlineError(Problem(str(self.dir), late, f"see {self.log}"))

    def attach(self, deadline_s: float = 0.5) -> bool:
        """Returns True if a server of this directory runs already; `pid` is then its process id.

        Raises `DeadlineError` if the lock's holder does not write its pid in time.
        """
        give_up = time.monotonic() + deadline_s
        while self._held():
            noted = self._lock.read_text().strip()
            if noted:
                self.pid = int(noted)
                return True
            if time.monotonic() > give_up:
                raise DeadlineError(
                    Problem(
                        str(self._lock),
                        "is held, but names no process",
                        f"find the holder with `fuser {self._lock}`, and end it",
                    )
                )
            time.sleep(POLL_S)
        return False

    def launch(self, argv: Sequence[str], environ: Mapping[str, str] | None = None) -> None:
        """Starts `argv` in the directory, without waiting for it to be ready."""
        self.dir.mkdir(parents=True, exist_ok=True)
        log_file.keep_short(self.log)
        with self._lock.open("a+") as lock, self.log.open("ab") as log:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            lock.truncate(0)
            words = os.environ if environ is None else environ
            self._child = failpoints.step("launch server", lambda: self._spawn(argv, words, log, lock), argv)
            self.pid = self._child.pid

    def _spawn(
        self, argv: Sequence[str], environ: Mapping[str, str], log: IO[bytes], lock: IO[str]
    ) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(
            noting_itself(str(self._lock), argv),
            cwd=self.dir,
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            pass_fds=[lock.fileno()],
        )

    def alive(self) -> bool:
        """True while the server runs."""
        return self._child.poll() is None if self._child else self._held()

    def end(self, grace_s: float) -> None:
        """Sends SIGTERM, and SIGKILL after `grace_s`. Returns when the server is gone."""
        self._signal_and_wait(signal.SIGTERM, grace_s)
        self.kill()

    def kill(self) -> None:
        """Sends SIGKILL, as in a crash. Returns when the server is gone; raises `DeadlineError` if it does not end."""
        self._signal_and_wait(signal.SIGKILL, GONE_S)
        if self.alive():
            what = f"its server (pid {self.pid}) was killed and has not ended in {GONE_S:.0f} s"
            raise DeadlineError(Problem(str(self.dir), what, "see what holds it: perhaps a disk that hangs"))
        self._child = self.pid = None

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
        return any(sign in self.log_tail() for sign in DISK_FULL_SIGNS) or self._no_space()

    def explain_end(self, what: str) -> Problem:
        """Explains from the last lines of its log why the server, which a person calls `what`, ended."""
        if self.disk_full:
            return Problem(str(self.dir), f"the {what} ended because its disk is full", "free space, then start again")
        lines = [line for line in self.log_tail().splitlines() if line.strip()]
        reason = " | ".join(lines[-3:]) or "its log is empty"
        return Problem(str(self.dir), f"the {what} ended: {reason}", f"see {self.log}")

    def _signal_and_wait(self, number: signal.Signals, grace_s: float) -> None:
        if self.pid is None or not self.alive():
            return
        with suppress(ProcessLookupError):
            failpoints.step("end server", partial(os.kill, self.pid, number), self.dir)
        give_up = time.monotonic() + grace_s
        while self.alive() and time.monotonic() < give_up:
            time.sleep(POLL_S)

    def _known_port(self) -> int:
        """Returns the port that the server had last time if it is still free, otherwise any free one."""
        if self._port.exists():
            with suppress(OSError):
                return free_port(int(self._port.read_text()))
        return free_port()

    def _held(self) -> bool:
        return self._lock.exists() and is_locked(self._lock)

    def _no_space(self) -> bool:
        return self.dir.exists() and shutil.disk_usage(self.dir).free < LOG_TAIL_BYTES


def free_port(wanted: int = 0) -> int:
    """Returns the `wanted` port of the loopback interface, or any; raises `OSError` if it is not free."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((HOST, wanted))
        return int(probe.getsockname()[1])
