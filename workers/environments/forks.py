"""What a process that the environment forks does not take over: the socket to the worker, and the handlers of signals.

The signals are blocked while it is forked, so that one sent to it right away finds the usual handlers.
"""

import os
import signal
import socket

SIGNALS = (signal.SIGINT, signal.SIGTERM)


def prepare(connection: socket.socket) -> None:
    """Makes SIGINT and SIGTERM do nothing in this process, and prepares for forks of it."""
    masks = list[set[signal.Signals | int]]()

    def before() -> None:
        masks.append(signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS))

    def after() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, masks.pop())

    def in_child() -> None:
        connection.close()
        for number in SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        after()

    for number in SIGNALS:
        signal.signal(number, lambda *_: None)  # SIG_IGN would be inherited by programs that the environment starts
    os.register_at_fork(before=before, after_in_parent=after, after_in_child=in_child)
