"""Signals of whoever started the worker: SIGUSR1, rest; SIGUSR2, leave."""

import signal
from functools import partial

from workers.shutdown import Shutdown, hear


def watch(leaving: Shutdown) -> None:
    hear(
        {
            signal.SIGUSR1: partial(leaving.rest, signal.SIGUSR1.name),
            signal.SIGUSR2: partial(leaving.leave, signal.SIGUSR2.name),
        }
    )
