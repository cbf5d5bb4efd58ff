"""The events that a process of the laboratory reports to the process that started it."""

import faulthandler
import signal
import sys
import time
from typing import Any

import orjson


def report(what: str, at_s: float | None = None, **figures: Any) -> None:
    """Reports an event. `at_s`: its time by the machine's monotonic clock; by default now."""
    line = orjson.dumps({"what": what, "at_s": time.monotonic() if at_s is None else at_s, **figures}) + b"\n"
    sys.stdout.buffer.write(line)
    sys.stdout.buffer.flush()


def dump_stacks_on_signal() -> None:
    """Makes SIGUSR1 write the stack of each thread to this process's log."""
    faulthandler.register(signal.SIGUSR1)
