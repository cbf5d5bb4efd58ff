"""The entry of a role: until the role has handlers of its own, SIGTERM and SIGHUP end it at once with 0.

- The role holds nothing yet. Process 1 of a container would otherwise not hear the signal while packages are imported,
  which takes seconds, and be killed at the end of its grace.
- `python -m echo_queue.launch.entry PROGRAM ARGUMENT...` runs a module like that, as `python -m PROGRAM` would.

It imports nothing that takes time.
"""

import os
import runpy
import signal
import sys

HELD_BACK = (signal.SIGTERM, signal.SIGHUP)


def end_at_once() -> None:
    """Makes both signals end this process with 0, also one that came while it was held back; SIGHUP unless it is
    ignored. Call it in the main thread."""
    for number in HELD_BACK:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, lambda *_: os._exit(0))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, HELD_BACK)


def hold_back() -> None:
    """Holds both signals back for the program that this process is about to become, which begins with `end_at_once`."""
    signal.pthread_sigmask(signal.SIG_BLOCK, HELD_BACK)


if __name__ == "__main__":
    end_at_once()
    program = sys.argv.pop(1)
    runpy.run_module(program, run_name="__main__", alter_sys=True)
