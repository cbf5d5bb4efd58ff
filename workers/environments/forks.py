"""Keeps from a process that the environment forks what it must not take over: the socket to the worker, and the
keeper's handlers.

The signals are blocked while it is forked, so that one sent to it right away finds the usual handlers.
"""

import os
import signal
import socket

from workers.environments.keeper import SIGNALS


def prepare(connection: socket.socket) -> None:
    """Prepares for forks of this process."""
    masks = list[set[signal.Signals | int]]()

    def before() -> None:
        masks.append(signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS))

    def after() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, masks.pop())

    def in_child() -> None:
        connection.close()
        for number in SIGNALS:
            if signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, signal.SIG_DFL)
        after()

    os.register_at_fork(before=before, after_in_parent=after, after_in_child=in_child)
