"""The shutdown: how a worker learns that it must leave, and what ends it if its main thread hangs."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from echo_queue.queue import WorkerOrder
from tests.queue.clients import Clients
from tests.workers.worker_harness import WorkerHarness, tensors_of
from workers.held_leases import HeldLeases
from workers.shutdown import LEAST_S, Shutdown, ShutdownThread, on_signals

Begin = Callable[..., WorkerHarness]
DEADLINE_S = 120.0


@pytest.mark.usefixtures("signal_handlers")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_makes_a_worker_leave(number: signal.Signals) -> None:
    shutdown = Shutdown()
    on_signals(shutdown)
    os.kill(os.getpid(), number)
    assert shutdown.wait(DEADLINE_S)
    assert (shutdown.why, shutdown.within_s) == (number.name, None)


def test_the_first_notice_says_why_and_how_soon() -> None:
    shutdown = Shutdown()
    shutdown.leave("the cloud takes it", within_s=25.0)
    shutdown.leave("SIGTERM")
    assert (shutdown.why, shutdown.within_s) == ("the cloud takes it", 25.0)


def test_the_time_there_is_comes_from_the_notice_or_from_the_configuration() -> None:
    assert Shutdown().time_s(20.0) == 20.0
    for told_s, there_is_s in ((25.0, 25.0), (0.0, LEAST_S)):
        shutdown = Shutdown()
        shutdown.leave("the cloud takes it", told_s)
        assert shutdown.time_s(20.0) == there_is_s


def test_an_order_of_the_controller_makes_a_worker_rest_or_leave() -> None:
    shutdown = Shutdown()
    shutdown.obey(WorkerOrder("rest"))
    assert shutdown.resting and not shutdown.is_set()
    shutdown.obey(WorkerOrder("leave", 25.0))
    assert shutdown.is_set() and (shutdown.within_s, shutdown.departure) == (25.0, "dismissed")


def test_a_worker_that_rests_does_not_leave() -> None:
    shutdown = Shutdown()
    shutdown.rest("it may be taken")
    assert shutdown.resting and not shutdown.is_set()


def test_a_main_thread_that_leaves_by_itself_is_left_alone(harness: Begin) -> None:
    shutdown, retired = Shutdown(), Shutdown()
    run = harness()
    queue = Clients.connected_as(run.config, "worker")
    shutdown_thread = ShutdownThread(queue, "w1", shutdown, grace_s=DEADLINE_S, held=HeldLeases(), retire=retired.set)
    shutdown_thread.start()
    shutdown.leave("it is time")
    assert retired.wait(DEADLINE_S)
    shutdown_thread.left()
    shutdown_thread.join(timeout=DEADLINE_S)
    assert not shutdown_thread.is_alive()


@pytest.fixture
def stuck(harness: Begin, folder: Path, tmp_path: Path) -> Iterator[tuple[WorkerHarness, "subprocess.Popen[bytes]"]]:
    """A process that holds two tasks and cannot be stopped. SIGTERM gives it 600 s, the file `notice` 2 s."""
    run = harness(queue={"lease_s": 600.0}, rollout={"grace_s": 600.0})
    run.begin(["1", "2"], tensors_of(folder))
    command = [sys.executable, "-m", "tests.workers.stuck", str(run.path), str(tmp_path / "notice")]
    process = subprocess.Popen(command)
    run.until(lambda: run.status().in_flight == 2, "the stuck worker's lease")
    yield run, process
    process.kill()
    process.wait()


@pytest.mark.slow
def test_what_a_stuck_worker_holds_is_handed_back_in_the_time_a_notice_gives(
    stuck: tuple[WorkerHarness, "subprocess.Popen[bytes]"], tmp_path: Path
) -> None:
    run, process = stuck
    (tmp_path / "notice").write_text("2")
    assert process.wait(timeout=DEADLINE_S) == 0
    assert run.queue.reclaim().released == 2
    assert run.queue.audit().ok


@pytest.mark.slow
def test_a_stuck_worker_ends_in_time_though_nobody_hears_what_it_hands_back(
    stuck: tuple[WorkerHarness, "subprocess.Popen[bytes]"], tmp_path: Path
) -> None:
    run, process = stuck
    run.services.stop()
    (tmp_path / "notice").write_text("2")
    assert process.wait(timeout=DEADLINE_S) == 0
