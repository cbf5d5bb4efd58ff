"""The one way in which a test waits for something that another thread or process does."""

import time
from collections.abc import Callable

DEADLINE_S = 180.0
"""Long enough for a busy machine: a test passes as soon as its condition holds, and only a failure waits this long."""
POLL_S = 0.01


def wait_until(
    condition: Callable[[], object], what: str, deadline_s: float = DEADLINE_S, told: Callable[[], str] = str
) -> None:
    """Returns once `condition()` is true. Fails the test at the deadline, naming `what`, and adds what `told` says."""
    give_up = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < give_up, f"waited {deadline_s:.0f} s for {what}\n{told()}".rstrip()
        time.sleep(POLL_S)
