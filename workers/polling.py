"""The one wait of a worker for something that another role brings: it asks again and again, up to a deadline."""

import random
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from echo_queue.errors import DeadlineError, Problem

T = TypeVar("T")


def poll(
    ask: Callable[[], T | None], shutdown: threading.Event, *, deadline_s: float, longest_pause_s: float, late: Problem
) -> T | None:
    """Returns the first answer of `ask` that is not None, or None once `shutdown` is set.

    Raises `DeadlineError` with `late` if there is none after `deadline_s`. The pauses differ, so that workers which
    start together do not ask together.
    """
    give_up = time.monotonic() + deadline_s
    while not shutdown.is_set():
        if (answer := ask()) is not None:
            return answer
        if time.monotonic() > give_up:
            raise DeadlineError(late)
        shutdown.wait(longest_pause_s * random.uniform(0.5, 1.0))
    return None
