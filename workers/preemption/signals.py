"""Signals from the process that started the worker: SIGUSR1, rest; SIGUSR2, leave."""

import signal
from functools import partial

from echo_queue.launch.signals import dispatch_signals
from workers.shutdown import Shutdown


def watch(shutdown: Shutdown) -> None:
    """Passes the two signals on to `shutdown`. Call it in the main thread."""
    dispatch_signals(
        {
            signal.SIGUSR1: partial(shutdown.rest, signal.SIGUSR1.name),
            signal.SIGUSR2: partial(shutdown.leave, signal.SIGUSR2.name, departure="preempted"),
        }
    )
