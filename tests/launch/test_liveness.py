"""Promises of `echo-queue healthy`: a role that hangs, or whose engine does, is told from one that lives."""

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from echo_queue.errors import ConfigError
from echo_queue.launch import liveness
from echo_queue.launch.liveness import LivenessFile, LivenessThread, StepClock, unhealthy
from tests.waiting import wait_until

OTHER = """
import sys, threading
from echo_queue.launch.liveness import LivenessThread
with LivenessThread("worker"):
    print("lives", flush=True)
    threading.Event().wait(600)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine of this test's own, as far as roles show there that they live."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(liveness, "EVERY_S", 0.01)
    return tmp_path


@pytest.fixture
def other() -> Iterator["subprocess.Popen[str]"]:
    """A worker in another process that lives."""
    with subprocess.Popen([sys.executable, "-c", OTHER], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "lives\n"
        yield process
        process.kill()


def test_a_role_that_lives_is_healthy_and_one_that_has_ended_is_not() -> None:
    with LivenessThread("learner"):
        assert unhealthy("learner") == ""
        assert unhealthy("worker") == "no worker runs on this machine"
    assert unhealthy("learner") == "no learner runs on this machine"


def test_a_process_that_hangs_is_unhealthy_and_what_a_killed_one_left_counts_for_nothing(
    other: "subprocess.Popen[str]",
) -> None:
    assert unhealthy("worker") == ""
    with LivenessThread("worker"):
        other.send_signal(signal.SIGSTOP)
        wait_until(lambda: "no sign of life" in unhealthy("worker", late_s=0.2), "one of two workers to be missed")
        other.kill()
        other.wait(timeout=60)
        assert unhealthy("worker") == ""
    assert unhealthy("worker") == "no worker runs on this machine"
    with LivenessThread("learner"):
        assert len(list(Path(tempfile.gettempdir()).glob("*/*"))) == 1, "what the killed process left is removed"


def test_an_engine_whose_step_does_not_end_is_unhealthy_until_it_ends(caplog: pytest.LogCaptureFixture) -> None:
    steps, ended = StepClock(limit_s=0.05), threading.Event()

    def hang() -> None:
        with steps.step():
            ended.wait(timeout=60)

    with LivenessThread("worker", steps.trouble):
        stuck = threading.Thread(target=hang, daemon=True)
        stuck.start()
        wait_until(lambda: unhealthy("worker", late_s=0.1), "the engine to be missed")
        wait_until(lambda: "a step of the engine has lasted longer than 0.05 s" in caplog.text, "the reason in the log")
        ended.set()
        stuck.join(timeout=60)
        wait_until(lambda: not unhealthy("worker", late_s=0.1), "the engine to be found alive again")


def test_a_clock_that_was_set_back_makes_nobody_unhealthy() -> None:
    file = LivenessFile("services")
    (path,) = Path(tempfile.gettempdir()).glob("*/services.*")
    later = time.time() + 3600
    os.utime(path, (later, later))
    assert unhealthy("services") == ""
    file.close()


def test_a_folder_that_cannot_be_written_is_refused_with_what_to_do(folder: Path) -> None:
    (folder / f"echo-queue-{os.getuid()}").write_text("in the way")
    with pytest.raises(ConfigError, match="TMPDIR"):
        LivenessFile("worker")


@pytest.mark.parametrize(("role", "code", "said"), [("learner", 0, "lives"), ("worker", 1, "no worker runs")])
def test_the_command_tells_it_by_its_exit_code(role: str, code: int, said: str) -> None:
    with LivenessThread("learner"):
        command = [sys.executable, "-m", "echo_queue.cli", "healthy", role]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (code, "")
    assert said in done.stdout
