"""What the user's code does with processes, signals and files stays its own affair, and ends with it."""

import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from echo_queue.config import Environment
from tests.processes import is_running
from tests.waiting import wait_until
from tests.workers.asking import score
from tests.workers.test_environments import answers, scorer
from workers.environments.calls import Call, ScoringError
from workers.environments.keeper import descendants
from workers.environments.process import EnvironmentProcess

PROGRAMS = "tests.workers.programs"


def started(note: Path) -> list[int]:
    return [int(pid) for pid in note.read_text().split()]


def running(note: Path) -> list[int]:
    return [pid for pid in started(note) if is_running(pid)]


def test_programs_and_forks_of_a_reward_function_end_by_sigterm() -> None:
    with scorer(kind="function", function=f"{PROGRAMS}:terminates", timeout_s=20.0) as one:
        assert score(one, answers(["x", "x"])) == [1.0, 1.0]


@pytest.mark.parametrize(("completion", "reason"), [("hang", "timeout_s = 3"), ("die", "ended with 7")])
def test_what_a_reward_function_has_started_ends_with_its_process(tmp_path: Path, completion: str, reason: str) -> None:
    """… also in a session of its own, or as a daemon; and when the worker closes it."""
    failed, scored = tmp_path / "failed", tmp_path / "scored"
    with scorer(kind="function", function=f"{PROGRAMS}:starts", timeout_s=3.0) as one:
        with pytest.raises(ScoringError, match=reason):
            score(one, answers([completion], str(failed)))
        assert running(failed) == []
        assert score(one, answers(["well"], str(scored))) == [1.0]
        assert running(scored) == started(scored)
    assert running(scored) == []


def test_an_environment_ends_by_its_worker_s_wish_while_a_fork_of_the_worker_lives_on(tmp_path: Path) -> None:
    """A fork holds copies of the sockets that the worker closes."""
    note, forks = tmp_path / "started", list[int]()
    try:
        with scorer(kind="function", function=f"{PROGRAMS}:starts") as one:
            assert score(one, answers(["well"], str(note))) == [1.0]
            forks.append(os.fork())
            while not forks[0]:
                signal.pause()
        assert running(note) == []
    finally:
        for pid in forks:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def test_signals_to_all_processes_of_a_job_end_no_environment_that_starts() -> None:
    """It is the worker's to end: Slurm, systemd and terminals signal every process of a job at once."""
    process = EnvironmentProcess(Environment(kind="function", function=f"{PROGRAMS}:ill_mannered"))

    def signal_all() -> list[int]:
        below = descendants(process.pid)
        for pid in (process.pid, *below):
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                os.kill(pid, number)
        return below

    try:
        signal_all()
        wait_until(lambda: signal_all() or list(process.hear()), "the environment below its keeper")
        wait_until(lambda: list(process.hear()) or process.ready, "the environment")
        signal_all()
        process.ask(call := Call(answers(["well"])))
        wait_until(lambda: list(process.hear()), "the rewards")
        assert call not in process.calls.values()
    finally:
        process.close()


def test_a_worker_with_more_than_a_thousand_open_files_has_an_environment() -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, limits[1]), limits[1]))
    files = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    try:
        with scorer(kind="function", function=f"{PROGRAMS}:ill_mannered", timeout_s=20.0) as one:
            assert score(one, answers(["well"])) == [1.0]
    finally:
        for file in files:
            os.close(file)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@pytest.mark.slow
def test_what_a_reward_function_has_started_ends_with_a_worker_that_is_killed(tmp_path: Path) -> None:
    note = tmp_path / "started"
    program = (
        "from tests.workers.asking import score\n"
        "from tests.workers.test_environments import answers, scorer\n"
        f"with scorer(kind='function', function='{PROGRAMS}:starts') as one:\n"
        f"    score(one, answers(['hang'], {str(note)!r}))\n"
    )
    worker = subprocess.Popen([sys.executable, "-c", program])
    wait_until(note.exists, "the start of the programs")
    assert running(note) == started(note)
    worker.kill()
    worker.wait()
    wait_until(lambda: not running(note), "the end of what outlives its worker")


@pytest.mark.parametrize(
    ("completion", "reason"),
    [
        ("exit", "SystemExit: 0"),
        ("interrupt", "KeyboardInterrupt"),
        ("close files", "ended with"),
        ("read", "EOFError"),
        ("kill the group", "ended with -9"),
        ("fork and return", ""),
        ("fork and raise", ""),
        ("write", ""),
        ("thread", ""),
    ],
)
def test_an_ill_mannered_reward_function_fails_its_own_task_alone(completion: str, reason: str) -> None:
    with scorer(kind="function", function=f"{PROGRAMS}:ill_mannered", timeout_s=20.0) as one:
        if reason:
            with pytest.raises(ScoringError, match=reason):
                score(one, answers([completion]))
        else:
            assert score(one, answers([completion])) == [1.0]
        assert [score(one, answers(["well"] * count)) for count in (1, 2, 3)] == [[1.0], [1.0] * 2, [1.0] * 3]
