"""A role that is told to end while it still imports packages ends at once with 0, also as process 1 of a container."""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.processes import children_of
from tests.source_code import ROOT
from tests.waiting import wait_until

END_S = 120.0
STUCK = """
import pathlib
pathlib.Path("importing").touch()
open("gate").read()
"""
"""A package whose import lasts until somebody writes to `gate`."""
CLI = ("-m", "echo_queue.cli")
CELERY = ("-m", "echo_queue.launch.entry", "celery", "-A", "echo_queue.submission", "worker")
TOLD_BETWEEN = """
import os, signal, sys
from echo_queue.launch.entry import hold_back
hold_back()
os.kill(os.getpid(), int(sys.argv[1]))
os.execv(sys.executable, [sys.executable, "-m", "echo_queue.launch.entry", "workers", "run.toml"])
"""
CONTAINER = ("unshare", "--fork", "--pid", "--kill-child")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for package in ("typer", "pydantic", "celery"):
        (tmp_path / f"{package}.py").write_text(STUCK)
    os.mkfifo(tmp_path / "gate")
    return tmp_path


def started(folder: Path, *words: str, within: Sequence[str] = ()) -> "subprocess.Popen[bytes]":
    environ = {**os.environ, "PYTHONPATH": f"{folder}:{ROOT}"}
    return subprocess.Popen([*within, sys.executable, *words], cwd=folder, env=environ)


@pytest.mark.parametrize(
    "words",
    [
        *((*CLI, role, "run.toml") for role in ("services", "worker", "learner", "join", "notices", "fleet")),
        ("-m", "echo_queue.launch.entry", "workers", "run.toml"),
        ("-m", "echo_queue.launch.entry", "learner", "run.toml"),
        CELERY,
    ],
    ids=lambda words: words[-2] if words[-1] == "run.toml" else "submission",
)
@pytest.mark.parametrize("within", [(), CONTAINER], ids=["process", "container"])
def test_a_role_that_still_imports_ends_with_0_when_it_is_told_to(
    folder: Path, words: Sequence[str], within: Sequence[str]
) -> None:
    if within and subprocess.run([*within, "true"], capture_output=True, timeout=END_S, check=False).returncode:
        pytest.skip("no name space of processes can be made here")
    role = started(folder, *words, within=within)
    try:
        wait_until((folder / "importing").exists, "the import")
        (program,) = children_of(role.pid) if within else [role.pid]
        os.kill(program, signal.SIGTERM)
        assert role.wait(END_S) == 0
    finally:
        role.kill()
        role.wait(END_S)


def test_a_command_that_is_no_role_is_ended_by_the_signal(folder: Path) -> None:
    """An exit code of 0 would say that the submission was done."""
    command = started(folder, *CLI, "submit", "run.toml")
    wait_until((folder / "importing").exists, "the import")
    command.terminate()
    assert command.wait(END_S) == -signal.SIGTERM


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_between_a_command_and_the_program_that_it_becomes_is_heard(
    folder: Path, number: signal.Signals
) -> None:
    assert started(folder, "-c", TOLD_BETWEEN, str(int(number))).wait(END_S) == 0
    assert not (folder / "importing").exists()
