"""The entry of a role: until the role has handlers of its own, SIGTERM ends it at once with 0.

- The role holds nothing yet. Process 1 of a container would otherwise not hear the signal while packages are imported,
  which takes seconds, and be killed at the end of its grace.
- `python -m echo_queue.launch.entry PROGRAM ARGUMENT...` runs a module like that, as `python -m PROGRAM` would.

It imports nothing that takes time.
"""

import os
import runpy
import signal
import sys


def end_at_once() -> None:
    """Makes SIGTERM end this process with 0, also one that came while it was held back. Call it in the main thread."""
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


def hold_back() -> None:
    """Holds SIGTERM back for the program that this process is about to become, which begins with `end_at_once`."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})


if __name__ == "__main__":
    end_at_once()
    program = sys.argv.pop(1)
    runpy.run_module(program, run_name="__main__", alter_sys=True)
