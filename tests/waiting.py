"""The one way in which a test waits for something that another thread or process does."""

import time
from collections.abc import Callable

DEADLINE_S = 180.0
"""Long enough for a busy machine: a test passes as soon as its condition holds, and only a failure waits this long."""
POLL_S, LONGEST_POLL_S = 0.01, 0.25
SHARE = 0.1
"""The share of a core that looking takes, unless `LONGEST_POLL_S` would pass: what is waited for wants these cores."""


def wait_until(
    condition: Callable[[], object], what: str, deadline_s: float = DEADLINE_S, told: Callable[[], str] = str
) -> None:
    """Returns once `condition()` is true. Fails the test at the deadline, naming `what`, and adds what `told` says."""
    give_up = time.monotonic() + deadline_s
    while True:
        began_s = time.thread_time()
        if condition():
            return
        looked_s = time.thread_time() - began_s
        assert time.monotonic() < give_up, f"waited {deadline_s:.0f} s for {what}\n{told()}".rstrip()
        time.sleep(min(max(POLL_S, looked_s / SHARE), LONGEST_POLL_S))
