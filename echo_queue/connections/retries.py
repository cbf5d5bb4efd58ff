"""The loop that repeats a request while a server is away."""

import random
import time
from collections.abc import Callable
from typing import TypeVar

from echo_queue.connections.storage.errors import Unreachable
from echo_queue.connections.storage.outage_log import OutageLog
from echo_queue.errors import EchoQueueError

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 2.0
"""Pauses grow from the first to the longest, each twice the one before, and jittered."""

T = TypeVar("T")


def repeat(request: Callable[[], T], deadline_s: float, outages: OutageLog | None = None) -> T:
    """Returns the answer of `request`, which is called again while it raises `Unreachable`, until the deadline.

    It must be idempotent. Raises the `Unreachable` of the last try, and any other error at once. `outages` hears of
    each try that fails, and of an answer, which may be a refusal.
    """
    began, pause_s = time.monotonic(), FIRST_PAUSE_S
    while True:
        try:
            answer = request()
        except Unreachable as error:
            left_s = began + deadline_s - time.monotonic()
            if left_s <= 0:
                raise
            if outages:
                outages.failed(error.problems[0].what, began, left_s)
        except EchoQueueError:
            if outages:
                outages.answered()
            raise
        else:
            if outages:
                outages.answered()
            return answer
        time.sleep(min(left_s, pause_s * random.uniform(0.5, 1.0)))
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
