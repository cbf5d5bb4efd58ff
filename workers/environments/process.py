"""One process of the environment, as the worker sees it: the calls that it has, and its channel.

An environment whose functions are coroutines says so with its first call (`Ready`), and then gets several at a time.
"""

import logging
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from echo_queue import failpoints
from echo_queue.config import Environment as EnvironmentConfig
from echo_queue.errors import DeadlineError
from echo_queue.launch.import_path import PYTHON
from echo_queue.launch.reap import reap
from workers.environments.calls import Call
from workers.environments.channel import Channel
from workers.environments.child import Answer, Ready, Unfit, answer_of
from workers.environments.keeper import held_back
from workers.environments.protocol import Spent, Within

log = logging.getLogger(__name__)

GONE_S = 10.0
"""A killed process is gone at once, unless the machine is in trouble."""
PROGRAM = """
import sys
from workers.environments.keeper import keep
keep(int(sys.argv[1]), int(sys.argv[2]))
from workers.environments.child import main
main(*sys.argv[2:])
"""


class EnvironmentProcess:
    """Starts the process, without waiting for it."""

    def __init__(self, config: EnvironmentConfig) -> None:
        self.config = config
        self.ready = False
        self.started_s = time.monotonic()
        self.calls: dict[int, Call] = {}
        self.cancelled: dict[int, Call] = {}
        """The calls that were late and cancelled, until the process confirms it."""
        self.cancelled_s = 0.0
        """When the first of them was."""
        self._most = 1
        self._asked = 0
        ours, theirs = socket.socketpair()
        kept, self._life = socket.socketpair()
        self._process = failpoints.step("spawn scorer", lambda: self._spawn(kept, theirs))
        kept.close()
        theirs.close()
        self.channel = Channel(ours)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def asynchronous(self) -> bool:
        return self._most > 1

    @property
    def all_calls(self) -> list[Call]:
        return [*self.calls.values(), *self.cancelled.values()]

    def has_room(self, call: Call) -> bool:
        """Returns whether the process may get a call now."""
        if not self.ready or len(self.calls) >= self._most:
            return False
        if call.alone or any(one.alone for one in self.calls.values()):
            return not self.all_calls
        return True

    def ask(self, call: Call) -> None:
        self._asked += 1
        call.within = ()
        call.late_s = time.monotonic() + self.config.timeout_s
        self.calls[self._asked] = call
        failpoints.step("ask scorer", lambda: self.channel.send([self._asked, "ask", call.question]))

    def cancel(self, number: int) -> None:
        """Takes a call back. The process confirms that at once, unless it hangs."""
        self.cancelled_s = self.cancelled_s if self.cancelled else time.monotonic()
        self.cancelled[number] = self.calls.pop(number)
        self.channel.send([number, "cancel", None])

    def hear(self) -> Iterator[tuple[Call | None, Answer]]:
        """Yields the answers that have come; of those to no call, `Ready`, `Unfit` and `Spent` alone.

        Raises `EOFError` once the process is gone, `ValueError` for what is no answer.
        """
        failpoints.step("hear scorer", self.channel.receive)
        for message in self.channel.messages():
            number, answer = numbered(message)
            if isinstance(answer, Ready):
                self.ready = True
                self._most = self.config.concurrent_calls if answer.asynchronous else 1
                yield None, answer
            elif isinstance(answer, Spent) or (isinstance(answer, Unfit) and not self.ready):
                yield None, answer
            elif isinstance(answer, Within):
                if (call := self.calls.get(number) or self.cancelled.get(number)) is not None:
                    call.within = answer.names
            elif (call := self.calls.pop(number, None) or self.cancelled.pop(number, None)) is not None:
                yield call, answer
            elif not 0 < number <= self._asked:
                raise ValueError(f"an answer to no question: {str(message)[:200]}")

    def close(self) -> int:
        """Ends the process and all that it started. Returns its exit code, negative if a signal ended it.

        One that the kernel holds is left behind, which the log tells: it was killed, and ends later.
        """
        self.channel.close()
        if self._life.fileno() != -1:
            failpoints.step("end scorer", self._end_life)
        try:
            return reap(self._process, GONE_S, "the environment's process")
        except DeadlineError as error:
            log.warning("%s", error)
            return -signal.SIGKILL

    def _end_life(self) -> None:
        """Ends the pipe, also for a copy of this end that a fork of this process has."""
        with suppress(OSError):  # of a keeper that is gone
            self._life.shutdown(socket.SHUT_RDWR)
        self._life.close()
        self._process.send_signal(signal.SIGCONT)  # to a keeper that somebody has stopped

    def _spawn(self, kept: socket.socket, connection: socket.socket) -> "subprocess.Popen[bytes]":
        """Starts the process. `kept`: its keeper's end of the pipe that tells whether this process is alive."""
        shared = [kept.fileno(), connection.fileno()]
        arguments = [*map(str, shared), self.config.model_dump_json()]
        with held_back():
            return subprocess.Popen([*PYTHON, "-c", PROGRAM, *arguments], stdin=subprocess.DEVNULL, pass_fds=shared)


def numbered(message: Any) -> tuple[int, Answer]:
    """Returns the number and the answer in a message. Raises `ValueError` for any other message."""
    match message:
        case [int(number), *answer]:
            return number, answer_of(answer)
    raise ValueError(f"not an answer: {str(message)[:200]}")
