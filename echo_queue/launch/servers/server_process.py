"""One server program per directory, on a port of the loopback interface: started, found again and ended.

The server inherits a lock on `<dir>/lock`, so the lock is held exactly as long as the server lives, whatever becomes of
the process that started it. A second start in the same directory therefore finds the running server instead of starting
another. The server's output goes to `<dir>/log`.
"""

import fcntl
import os
import signal
import socket
import subprocess
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import IO

from echo_queue import failpoints
from echo_queue.atomic_file import write_atomically
from echo_queue.connections.server_directory import ServerDirectory
from echo_queue.errors import DeadlineError, Problem, ServiceError
from echo_queue.file_lock import noting_itself
from echo_queue.launch import log_file

HOST = "127.0.0.1"
PORT_ATTEMPTS = 3
PORT_TAKEN = "address already in use"
"""The log's words, in lower case, when another program took the port between our check and the server's start."""
POLL_S = 0.02
GONE_S = 30.0
STOP_GRACE_S = 10.0


Ready = Callable[[], None]
"""Returns once the server at `port` serves. Raises `ServiceError` if it ended, `DeadlineError` if it is late."""
Probe = Callable[[], str]
"""Asks the server at `port` once: empty if it serves, else why not yet. Raises `ServiceError` if it never will."""


class ServerProcess(ServerDirectory):
    """The server of one directory; `port` and `pid` are known once it was joined or launched."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.pid: int | None = None
        self.port = 0
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
        while super().alive():
            noted = self.lock.read_text().strip()
            if noted:
                self.pid = int(noted)
                return True
            if time.monotonic() > give_up:
                raise DeadlineError(
                    Problem(
                        str(self.lock),
                        "is held, but names no process",
                        f"find the holder with `fuser {self.lock}`, and end it",
                    )
                )
            time.sleep(POLL_S)
        return False

    def launch(self, argv: Sequence[str], environ: Mapping[str, str] | None = None) -> None:
        """Starts `argv` in the directory, without waiting for it to be ready."""
        self.dir.mkdir(parents=True, exist_ok=True)
        log_file.keep_short(self.log)
        with self.lock.open("a+") as lock, self.log.open("ab") as log:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            lock.truncate(0)
            words = os.environ if environ is None else environ
            self._child = failpoints.step("launch server", lambda: self._spawn(argv, words, log, lock), argv)
            self.pid = self._child.pid

    def _spawn(
        self, argv: Sequence[str], environ: Mapping[str, str], log: IO[bytes], lock: IO[str]
    ) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(
            noting_itself(str(self.lock), argv),
            cwd=self.dir,
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            pass_fds=[lock.fileno()],
        )

    def alive(self) -> bool:
        """True while the server runs, whoever started it."""
        return self._child.poll() is None if self._child else super().alive()

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


class EmbeddedServer:
    """A server of this machine, by its process: what whoever uses one of either kind may ask of it and do to it.

    `what`: what a person calls it.
    """

    def __init__(self, directory: Path, what: str) -> None:
        self.process, self._what = ServerProcess(directory), what
        self.dir = self.process.dir

    @property
    def port(self) -> int:
        return self.process.port

    @property
    def pid(self) -> int | None:
        return self.process.pid

    def alive(self) -> bool:
        """True while the server runs."""
        return self.process.alive()

    def stop(self) -> None:
        """Ends the server; returns when it is gone."""
        self.process.end(STOP_GRACE_S)

    def kill(self) -> None:
        """Sends SIGKILL, as in a crash; returns when the server is gone."""
        self.process.kill()

    @abstractmethod
    def probe(self) -> str:
        """Asks the server once, as a `Probe` does."""

    def _ready_within(self, deadline_s: float) -> Ready:
        return partial(self.process.await_ready, self.probe, deadline_s, self._what)


def free_port(wanted: int = 0) -> int:
    """Returns the `wanted` port of the loopback interface, or any; raises `OSError` if it is not free."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((HOST, wanted))
        return int(probe.getsockname()[1])
