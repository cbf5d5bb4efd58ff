"""A child that was only forked, with what others need of a `subprocess.Popen`."""

import ctypes
import os
import random
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

POLL_S = 0.01
LONGEST_S = 3_600.0
PR_SET_NAME = 15  # linux/prctl.h


class Forked:
    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._code: int | None = None

    def poll(self) -> int | None:
        if self._code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._code = os.waitstatus_to_exitcode(status)
        return self._code

    def wait(self, timeout: float | None = None) -> int:
        deadline_s = LONGEST_S if timeout is None else timeout
        give_up = time.monotonic() + deadline_s
        while (code := self.poll()) is None:
            if time.monotonic() > give_up:
                raise subprocess.TimeoutExpired(str(self.pid), deadline_s)
            time.sleep(POLL_S)
        return code

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)


def run_child(prepare: Callable[[], None], run: Callable[[], int]) -> NoReturn:
    """Runs a child, just forked, to its end: `prepare` gives it its files, `run` its exit code.

    It takes over neither its parent's signal handlers nor its random numbers.
    """
    code = 1
    try:
        prepare()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        random.seed()
        code = run()
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def set_process_name(name: str) -> None:
    """Names the calling process; the kernel keeps 15 bytes."""
    ctypes.CDLL(None).prctl(PR_SET_NAME, name.encode()[:15])
