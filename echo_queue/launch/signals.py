"""Signals that end a process: the action of each runs in a thread of its own.

A handler in the main thread could deadlock: it runs between any two instructions, even while the main thread holds a
lock that the action needs. `threading.Event.wait` holds such a lock for an instant, and `set` needs it.
"""

import signal
import threading
from collections.abc import Callable, Mapping
from queue import SimpleQueue


def ending() -> tuple[signal.Signals, ...]:
    """Returns the signals that ask this process to end.

    A closed terminal is one of them (SIGHUP), unless the process was started to outlive it, as by nohup.
    """
    outlives = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    return (signal.SIGTERM, signal.SIGINT, *(() if outlives else (signal.SIGHUP,)))


def set_on_signals(stop: threading.Event) -> None:
    """Sets `stop` on each signal that asks to end. Call it in the main thread."""
    dispatch_signals(dict.fromkeys(ending(), stop.set))


def dispatch_signals(actions: Mapping[signal.Signals, Callable[[], object]]) -> None:
    """Runs the action of each signal that arrives, one after another. Call it in the main thread."""
    received: SimpleQueue[int] = SimpleQueue()  # its `put` is reentrant
    for number in actions:
        signal.signal(number, lambda number, _: received.put(number))
    threading.Thread(target=_run_actions, args=(received, actions), name="signals", daemon=True).start()


def _run_actions(received: "SimpleQueue[int]", actions: Mapping[signal.Signals, Callable[[], object]]) -> None:
    while True:
        actions[signal.Signals(received.get())]()
