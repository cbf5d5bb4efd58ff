"""Ends the processes that a supervisor started, should the supervisor itself be killed.

The supervisor starts it as a program of its own. Standard input is a pipe from the supervisor and its roles: `+ 123`
names a process group to kill, `~ 123` one to end politely (servers close their files), `- 123` one that is gone. The
pipe closes when the supervisor dies, for whatever reason; then every named group is ended. The guard inherits the run's
lock, so no other supervisor starts the run before that is done.

It imports nothing of this package, so that it starts in a few milliseconds; it lives as long as the run.
"""

import os
import signal
import sys
import time
from contextlib import suppress

GRACE_S = 20.0


def end(kill: set[int], ask: set[int], grace_s: float) -> None:
    """Kills the groups in `kill`, and asks those in `ask` to end; it waits for all, and kills these after `grace_s`."""
    for group in kill:
        _signal(group, signal.SIGKILL)
    for group in ask:
        _signal(group, signal.SIGTERM)
    give_up = time.monotonic() + grace_s
    while any(map(_lives, kill | ask)) and time.monotonic() < give_up:
        time.sleep(0.02)
    for group in ask:
        _signal(group, signal.SIGKILL)


def main() -> None:
    groups: dict[str, set[int]] = {"+": set(), "~": set()}
    for line in sys.stdin:
        sign, group = line.split()
        for named in groups.values():
            named.discard(int(group))
        if sign in groups:
            groups[sign].add(int(group))
    end(groups["+"], groups["~"], GRACE_S)


def _signal(group: int, number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def _lives(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


if __name__ == "__main__":
    main()
