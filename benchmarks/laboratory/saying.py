"""How a process of the laboratory tells the one that started it what happened, and when."""

import faulthandler
import signal
import sys
import time
from typing import Any

import orjson


def say(what: str, at_s: float | None = None, **figures: Any) -> None:
    """`at_s`: of the machine's one monotonic clock; now, without it."""
    line = orjson.dumps({"what": what, "at_s": time.monotonic() if at_s is None else at_s, **figures}) + b"\n"
    sys.stdout.buffer.write(line)
    sys.stdout.buffer.flush()


def explain_when_asked() -> None:
    """On SIGUSR1 this process writes to its log where each of its threads stands."""
    faulthandler.register(signal.SIGUSR1)
