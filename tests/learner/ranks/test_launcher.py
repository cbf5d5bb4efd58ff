"""The launcher, in a process of its own, with small programs as ranks: real signals, real deaths."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from echo_queue.errors import HOPELESS, REFUSED
from tests.waiting import wait_until

DEADLINE_S = 60.0
LAUNCH = """
import os, sys
from echo_queue.errors import EchoQueueError
from echo_queue.launch.backoff import RestartBackoff
from learner.ranks import launcher
if patience := float(os.environ["PATIENCE_S"]):
    launcher.ABORTED_S = launcher.LAST_WORDS_S = launcher.VERDICT_S = launcher.CLOSE_S = patience
try:
    sys.exit(launcher.launch([sys.executable, "-c", sys.argv[1]], 3, RestartBackoff(0.01, 0.01, 1e9, 3)))
except EchoQueueError as error:
    sys.exit(str(error))
"""
RANK = """
import os, pathlib, signal, sys
from echo_queue.errors import HOPELESS, REFUSED
from tests.waiting import wait_until
rank, folder = int(os.environ["RANK"]), pathlib.Path(os.environ["FOLDER"])
starts = folder / f"starts-{rank}"
starts.write_text(starts.read_text() + "x" if starts.exists() else "x")
start = len(starts.read_text())
(folder / f"pid-{rank}").write_text(str(os.getpid()))
def wait(): signal.pause()
def is_there(other):
    starts = folder / f"starts-{other}"
    return starts.exists() and len(starts.read_text()) >= start
def others_are_there():
    wait_until(lambda: all(map(is_there, range(3))), "the other ranks")
"""


class Launched:
    """A launcher whose ranks run `program`, and the folder in which they leave their notes.

    `patience_s`: how long it waits for ranks that are left; 0: as long as it does for a user.
    """

    def __init__(self, folder: Path, program: str, patience_s: float) -> None:
        self.folder = folder
        self.process = subprocess.Popen(
            [sys.executable, "-c", LAUNCH, RANK + program],
            env=os.environ | {"FOLDER": str(folder), "PATIENCE_S": str(patience_s)},
            stderr=subprocess.PIPE,
            text=True,
        )

    def end(self) -> tuple[int, str]:
        """Waits for the launcher's end, and returns its exit code and what it printed."""
        _, printed = self.process.communicate(timeout=DEADLINE_S)
        return self.process.returncode, printed

    def starts(self) -> list[int]:
        """Returns how often each rank was started."""
        return [len((self.folder / f"starts-{rank}").read_text()) for rank in range(3)]

    def pids(self) -> list[int]:
        return [int((self.folder / f"pid-{rank}").read_text()) for rank in range(3)]

    def are_started(self) -> None:
        files = [self.folder / f"pid-{rank}" for rank in range(3)]
        wait_until(lambda: all(file.exists() and file.read_text() for file in files), "all ranks")


@pytest.fixture
def launched(tmp_path: Path) -> Iterator[list[Launched]]:
    """Launchers that are ended with the test."""
    started: list[Launched] = []
    yield started
    for one in started:
        one.process.kill()
        one.process.wait(DEADLINE_S)


def launch(launched: list[Launched], folder: Path, program: str, patience_s: float = 0.0) -> Launched:
    launched.append(Launched(folder, program, patience_s))
    return launched[-1]


def lives(pid: int) -> bool:
    with suppress(ProcessLookupError):
        os.kill(pid, 0)
        return True
    return False


def test_ranks_that_are_done_end_the_learner(launched: list[Launched], tmp_path: Path) -> None:
    one = launch(launched, tmp_path, "others_are_there()")
    assert one.end() == (0, "")
    assert one.starts() == [1, 1, 1]


def test_a_rank_knows_its_place_and_rank_0_has_the_port(launched: list[Launched], tmp_path: Path) -> None:
    program = """
listener = os.environ.get("ECHO_QUEUE_RANKS_LISTENER")
names = ["RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR"]
port = int(os.environ["MASTER_PORT"])
import socket
held = listener and socket.socket(fileno=int(listener)).getsockname()[1] == port
(folder / f"place-{rank}").write_text(" ".join([*(os.environ[name] for name in names), str(held)]))
others_are_there()
"""
    one = launch(launched, tmp_path, program)
    assert one.end() == (0, "")
    places = [(tmp_path / f"place-{rank}").read_text() for rank in range(3)]
    assert places == ["0 0 3 127.0.0.1 True", "1 1 3 127.0.0.1 None", "2 2 3 127.0.0.1 None"]


@pytest.mark.slow
@pytest.mark.parametrize("dying", [0, 2])
def test_a_death_takes_all_ranks_along_and_they_start_again(
    launched: list[Launched], tmp_path: Path, dying: int
) -> None:
    program = f"""
others_are_there()
if start == 2: sys.exit(0)
if rank == {dying}: os.kill(os.getpid(), signal.SIGKILL)
wait()
"""
    one = launch(launched, tmp_path, program)
    code, printed = one.end()
    assert (code, one.starts()) == (0, [2, 2, 2])
    assert f"learner rank {dying} was ended by SIGKILL" in printed


@pytest.mark.parametrize("verdict", [REFUSED, HOPELESS])
def test_a_rank_that_says_that_a_person_must_act_ends_the_learner(
    launched: list[Launched], tmp_path: Path, verdict: int
) -> None:
    one = launch(launched, tmp_path, f"others_are_there()\nif rank == 1: sys.exit({verdict})\nwait()", 0.5)
    assert one.end()[0] == verdict
    assert one.starts() == [1, 1, 1]
    assert not any(map(lives, one.pids()))


@pytest.mark.slow
def test_ranks_that_keep_dying_end_the_learner_with_the_cause(launched: list[Launched], tmp_path: Path) -> None:
    one = launch(launched, tmp_path, "others_are_there()\nif rank == 1: sys.exit(7)\nwait()", 0.5)
    code, printed = one.end()
    assert code == 1 and one.starts() == [3, 3, 3]
    assert "learner rank 1 ended with exit code 7; its ranks ended 3 times in a row" in printed


@pytest.mark.slow
def test_a_rank_that_hangs_while_nccl_ends_the_others_is_named(launched: list[Launched], tmp_path: Path) -> None:
    """NCCL ends each rank that waits in vain with SIGABRT, and names none."""
    program = """
others_are_there()
if start == 2: sys.exit(0)
if rank != 1: os.kill(os.getpid(), signal.SIGABRT)
wait()
"""
    one = launch(launched, tmp_path, program, 0.5)
    code, printed = one.end()
    assert (code, one.starts()) == (0, [2, 2, 2])
    assert "was ended by SIGABRT, while learner rank 1 still ran: it may hang" in printed


def test_a_rank_that_hangs_after_the_end_is_killed(launched: list[Launched], tmp_path: Path) -> None:
    one = launch(launched, tmp_path, "others_are_there()\nif rank == 1: wait()", 0.5)
    assert one.end()[0] == 0
    assert not any(map(lives, one.pids()))


def test_sigterm_reaches_rank_0_alone(launched: list[Launched], tmp_path: Path) -> None:
    program = """
def end(*_):
    (folder / f"asked-{rank}").touch()
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
(folder / f"ready-{rank}").touch()
if rank == 0: wait()
wait_until((folder / "asked-0").exists, "the end of rank 0")
"""
    one = launch(launched, tmp_path, program)
    wait_until(lambda: all((tmp_path / f"ready-{rank}").exists() for rank in range(3)), "all ranks")
    one.process.terminate()
    assert one.end() == (0, "")
    assert sorted(path.name for path in tmp_path.glob("asked-*")) == ["asked-0"]


def test_ranks_end_with_a_launcher_that_was_killed(launched: list[Launched], tmp_path: Path) -> None:
    program = "from learner.ranks.launcher import end_with_launcher\nend_with_launcher()\nwait()"
    one = launch(launched, tmp_path, program)
    one.are_started()
    one.process.send_signal(signal.SIGKILL)
    wait_until(lambda: not any(map(lives, one.pids())), "the end of all ranks")


def test_rank_0_may_say_that_a_person_must_act_after_another_has_ended(
    launched: list[Launched], tmp_path: Path
) -> None:
    program = """
others_are_there()
if rank == 1:
    (folder / "gone").touch()
    sys.exit(1)
wait_until((folder / "gone").exists, "the end of rank 1")
sys.exit(2 if rank == 0 else 1)
"""
    one = launch(launched, tmp_path, program)
    assert one.end()[0] == 2
    assert one.starts() == [1, 1, 1]
