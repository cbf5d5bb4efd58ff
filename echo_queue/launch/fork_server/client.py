"""The fork server from outside: the supervisor starts it, asks it for roles, and hears of their ends.

- While it still imports, nothing waits for it: `importing` says so, and the supervisor asks again.
- When it dies, or says no more, the roles that it forked go on. Their ends are then seen, but not their exit codes:
  each counts as a death.
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
from echo_queue.launch.import_path import PYTHON
from echo_queue.launch.reap import reap, start_time

PROGRAM = "echo_queue.launch.fork_server.program"
GPU_DRIVERS = (Path("/dev/nvidiactl"), Path("/dev/kfd"), Path("/dev/dxg"))
"""NVIDIA's, AMD's, and that of both under WSL. A process that has asked a driver anything cannot give it to its
children, and some packages ask when they are imported."""
IMPORTS_S = 60.0
"""A fork server that imports for longer is given up, well before anybody gives up the roles that wait for it."""
ANSWER_S = 10.0
"""A fork server that takes longer to fork, or to tell of an end, is given up."""
GONE_S = 30.0
POLL_S = 0.01


class NotForkedError(Exception):
    """The fork server has ended, does not answer, or cannot fork."""


def can_fork() -> bool:
    """Returns whether roles of this machine may be forked: it is Linux, and has no GPU."""
    return sys.platform == "linux" and not any(driver.exists() for driver in GPU_DRIVERS)


class ForkServer:
    """A fork server that imports `module`, and what it has said.

    `spawn` starts it: its command, its standard input. `gone` is called with its process id once no process has that.
    """

    def __init__(
        self,
        module: str,
        spawn: Callable[[tuple[str, ...], int], "subprocess.Popen[bytes]"],
        gone: Callable[[int], None],
    ) -> None:
        self._connection, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = spawn((*PYTHON, "-m", PROGRAM, module), theirs.fileno())
        self._gone = gone
        self._give_up = time.monotonic() + IMPORTS_S
        self._ready = self._lost = False
        self._answers: deque[int | None] = deque()
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

    def fork(self, command: Sequence[str], log: IO[bytes], announce: Callable[[int], None]) -> "ForkedRole":
        """Returns a process that runs `command`, which must be `python -P -m MODULE ARGUMENT...`.

        `announce` is called with its process id before it begins; the process leads its group by then. Raises
        `NotForkedError`; no process of that request begins then.
        """
        request = ForkRequest(command[3], tuple(command[4:])).encoded()
        if len(request) > MESSAGE_BYTES:
            raise NotForkedError
        try:
            socket.send_fds(self._connection, [request], [log.fileno()])
        except OSError:
            self.close()
        give_up = time.monotonic() + ANSWER_S
        while not self._answers:
            left_s = give_up - time.monotonic()
            if self._lost or left_s < 0:
                self.close()  # a process that it has forked ends with it, since it has not begun
                raise NotForkedError
            self._hear(left_s)
        pid = self._answers.popleft()
        if pid is None:
            raise NotForkedError
        role = ForkedRole(pid, self)
        try:
            announce(pid)
            self._connection.send(orjson.dumps({"begin": pid}))
        except OSError:  # the process ends without having begun, which counts as a death
            self.close()
        return role

    def code(self, pid: int) -> int | None:
        """Returns the exit code of a process that it forked, as far as it has told."""
        self._hear(0.0)
        return self._codes.get(pid)

    def is_lost(self) -> bool:
        """Returns whether nothing is heard any more, and all that was said is known."""
        return self._lost

    def close(self) -> None:
        """Ends the fork server; the roles that it forked and that have begun go on."""
        if self._lost:
            return
        self._process.kill()
        reap(self._process, GONE_S, "the fork server")
        self._connection.setblocking(False)
        with suppress(OSError):
            while message := self._connection.recv(MESSAGE_BYTES):
                self._note(message)
        self._lost = True
        self._answers.clear()
        self._connection.close()
        self._gone(self._process.pid)

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
                self._codes.pop(pid, None)  # of an earlier process with this id
                self._answers.append(pid)
            case {"refused": True}:
                self._answers.append(None)
            case _:
                self.close()


class ForkedRole:
    """A process that the fork server forked, with what the supervisor needs of a `subprocess.Popen`."""

    def __init__(self, pid: int, server: ForkServer) -> None:
        self.pid = pid
        self._server = server
        self._started = start_time(pid)
        self._code: int | None = None
        self._gone_s: float | None = None
        """When the process was first seen to have ended (monotonic clock)."""

    def poll(self) -> int | None:
        if self._code is None:
            self._code = self._server.code(self.pid)
        if self._code is None and self._has_ended():
            self._gone_s = self._gone_s or time.monotonic()
            if time.monotonic() - self._gone_s > ANSWER_S:
                self._server.close()
            if self._server.is_lost():
                self._code = -signal.SIGKILL
        return self._code

    def wait(self, timeout: float | None = None) -> int:
        """Raises `subprocess.TimeoutExpired`."""
        deadline_s = float("inf") if timeout is None else timeout
        give_up = time.monotonic() + deadline_s
        while (code := self.poll()) is None:
            if time.monotonic() > give_up:
                raise subprocess.TimeoutExpired(str(self.pid), deadline_s)
            time.sleep(POLL_S)
        return code

    def _has_ended(self) -> bool:
        """Returns whether the process has ended. Another one may have its id by now."""
        if self._server.is_lost():
            with suppress(ChildProcessError):  # this process adopts orphans if it is process 1 of a container
                os.waitpid(self.pid, os.WNOHANG)
        return self._started is None or start_time(self.pid) != self._started
