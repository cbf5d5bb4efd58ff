"""Signals that ask a role to end, at the worst instant."""

import os
import signal
import threading

import pytest

from echo_queue.launch.signals import dispatch_signals, ending, set_on_signals

DEADLINE_S = 60.0
pytestmark = pytest.mark.usefixtures("signal_handlers")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_each_signal_sets_the_event(number: signal.Signals) -> None:
    stop = threading.Event()
    set_on_signals(stop)
    os.kill(os.getpid(), number)
    assert stop.wait(DEADLINE_S)


def test_a_process_that_is_to_outlive_its_terminal_does() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    set_on_signals(threading.Event())
    assert signal.SIGHUP not in ending() and signal.getsignal(signal.SIGHUP) == signal.SIG_IGN


def test_an_action_may_need_a_lock_that_the_main_thread_holds() -> None:
    lock, ran = threading.Lock(), threading.Event()

    def act() -> None:
        assert lock.acquire(timeout=DEADLINE_S)
        ran.set()

    dispatch_signals({signal.SIGTERM: act})
    with lock:
        signal.raise_signal(signal.SIGTERM)
    assert ran.wait(DEADLINE_S)
