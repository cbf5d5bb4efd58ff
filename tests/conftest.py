"""Fixtures that start real servers, and the seed and the number of threads that all processes of a session share."""

import gc
import logging
import os
import signal
from collections.abc import Iterator
from importlib.util import find_spec

import pytest

from echo_queue.connections.storage import outage_log
from tests.seed import VARIABLE, session_seed
from tests.variables import variables_kept

pytest_plugins = ["tests.servers.embedded", "tests.servers.redis", "tests.servers.s3", "tests.tiers"]

ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")
"""Several processes share the cores, and the models are tiny: threads that wait for one another spin, which takes three
times the CPU time of the work itself."""


def pytest_configure() -> None:
    """Draws the session's seed before pytest-xdist starts its workers, which inherit the environment.

    So do all processes that tests start: they compute with one thread unless told otherwise, and hear SIGHUP although
    `nohup` ignores it.
    The garbage collector rests while the tests are imported: next to nothing of that is garbage.
    """
    session_seed()
    # Threads of tests that are over may still look for servers that are over too, and the next test hears them.
    logging.getLogger(outage_log.__name__).propagate = False
    for variable in ONE_THREAD:
        os.environ.setdefault(variable, "1")
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    _configure_hypothesis()
    gc.disable()


def pytest_report_header() -> str:
    return f"{VARIABLE}={session_seed()}"


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


def _configure_hypothesis() -> None:
    """Makes Hypothesis, where it is installed, draw from the same seed, and never judge by how fast it draws.

    Each test keeps the settings of the moment in which it was imported.
    """
    if find_spec("hypothesis") is None:
        return
    from hypothesis import HealthCheck, core, settings

    settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("any machine")
    if core.global_force_seed is None:
        core.global_force_seed = session_seed()


@pytest.fixture(autouse=True)
def variables_as_they_were() -> Iterator[None]:
    """Takes back the variables that a test and its fixtures left behind, which the roles of the next test would read.

    Fixtures that each restore what they found leave some behind where they do not end in the reverse order.
    """
    with variables_kept():
        yield


@pytest.fixture
def signal_handlers() -> Iterator[None]:
    """Restores the handlers of the signals that roles take, after the test."""
    taken = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
    before = {number: signal.getsignal(number) for number in taken}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
