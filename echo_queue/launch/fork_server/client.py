"""The fork server from outside: the supervisor starts it, asks it for roles, and hears of their ends.

- While it still imports, nothing waits for it: `importing` says so, and the supervisor asks again.
- When it dies, the roles that it forked go on. Their ends are then seen, but not their exit codes: each counts as a
  death.
"""

import os
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

import orjson

from echo_queue.launch.fork_server.fork_request import MESSAGE_BYTES, ForkRequest
from echo_queue.launch.reap import lives, reap

PROGRAM = "echo_queue.launch.fork_server.program"
GPU_DRIVERS = (Path("/dev/nvidiactl"), Path("/dev/kfd"))
"""NVIDIA's and AMD's. A process that has asked a driver anything cannot give it to its children, and some packages ask
when they are imported."""
IMPORTS_S = 300.0
"""A fork server that imports for longer is given up."""
ANSWER_S = 30.0
GONE_S = 30.0
POLL_S = 0.01


class ForkServerLostError(Exception):
    """The fork server has ended, or does not answer."""


def can_fork() -> bool:
    """Returns whether roles of this machine may be forked: it is Linux, and has no GPU."""
    return sys.platform == "linux" and not any(driver.exists() for driver in GPU_DRIVERS)


class ForkServer:
    """A fork server that imports `module`, and what it has said. `spawn` starts it: its command, its standard input."""

    def __init__(self, module: str, spawn: Callable[[tuple[str, ...], int], "subprocess.Popen[bytes]"]) -> None:
        self._connection, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = spawn((sys.executable, "-m", PROGRAM, module), theirs.fileno())
        self._give_up = time.monotonic() + IMPORTS_S
        self._ready = self._lost = False
        self._forked: deque[int] = deque()
        self._codes: dict[int, int] = {}

    @property
    def pid(self) -> int:
        return self._process.pid

    def importing(self) -> bool:
        """Returns whether it is still importing, so that a role had better wait for it."""
        self._hear(0.0)
        if not self._ready and time.monotonic() > self._give_up:
            self.close()
        return not self._ready and not self._lost

    def fork(self, command: Sequence[str], sign: str, log: IO[bytes], to_guard: IO[bytes]) -> "ForkedRole":
        """Returns a process that runs `command`, which must be `python -m MODULE ARGUMENT...`.

        Raises `ForkServerLostError`; no process of that request runs then.
        """
        request = ForkRequest(command[2], tuple(command[3:]), sign)
        give_up = time.monotonic() + ANSWER_S
        try:
            socket.send_fds(self._connection, [request.encoded()], [log.fileno(), to_guard.fileno()])
        except OSError:
            self._lost = True
        while not self._forked:
            left_s = give_up - time.monotonic()
            if self._lost or left_s < 0:
                self.close()
                raise ForkServerLostError
            self._hear(left_s)
        return ForkedRole(self._forked.popleft(), self)

    def code(self, pid: int) -> int | None:
        """Returns the exit code of a process that it forked; None while that runs."""
        self._hear(0.0)
        if pid not in self._codes and self._lost and not _orphan_lives(pid):
            self._codes[pid] = -signal.SIGKILL
        return self._codes.get(pid)

    def close(self) -> None:
        """Ends the fork server; the roles that it forked go on."""
        self._lost = True
        self._connection.close()
        self._process.kill()
        reap(self._process, GONE_S, "the fork server")

    def _hear(self, wait_s: float) -> None:
        """Takes note of all that it has said, and waits so long for the first message."""
        while not self._lost:
            self._connection.settimeout(wait_s)
            try:
                message = self._connection.recv(MESSAGE_BYTES)
            except (TimeoutError, BlockingIOError):
                return
            except OSError:
                message = b""
            wait_s = 0.0
            self._note(message)

    def _note(self, message: bytes) -> None:
        match orjson.loads(message or b"null"):
            case {"ready": True}:
                self._ready = True
            case {"pid": pid, "code": code}:
                self._codes[pid] = code
            case {"pid": pid}:
                self._forked.append(pid)
            case _:
                self._lost = True


class ForkedRole:
    """A process that the fork server forked, with what the supervisor needs of a `subprocess.Popen`."""

    def __init__(self, pid: int, server: ForkServer) -> None:
        self.pid = pid
        self._server = server

    def poll(self) -> int | None:
        return self._server.code(self.pid)

    def wait(self, timeout: float | None = None) -> int:
        """Raises `subprocess.TimeoutExpired`."""
        deadline_s = float("inf") if timeout is None else timeout
        give_up = time.monotonic() + deadline_s
        while (code := self.poll()) is None:
            if time.monotonic() > give_up:
                raise subprocess.TimeoutExpired(str(self.pid), deadline_s)
            time.sleep(POLL_S)
        return code


def _orphan_lives(pid: int) -> bool:
    """Returns whether it lives. Process 1 of a container adopts orphans, and reaps them here."""
    with suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
    return lives(pid)
