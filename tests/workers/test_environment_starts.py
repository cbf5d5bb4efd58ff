"""The processes of an environment that die, stop or cannot be started for a while; the worker goes on."""

import os
import resource
import signal
from pathlib import Path

import pytest

from echo_queue.errors import ConfigError
from tests.waiting import wait_until
from tests.workers.asking import score
from tests.workers.test_environments import answers, scorer
from workers.environments import process as process_module
from workers.environments import scorer as scorer_module
from workers.environments.calls import Call, ScoringError
from workers.environments.keeper import descendants
from workers.environments.scorer import Scorer


def pids_of(scorer: Scorer) -> list[int]:
    """Returns the processes of the environment, each after its keeper."""
    return [pid for one in scorer.processes for pid in (one.pid, *descendants(one.pid))]


def kill(scorer: Scorer) -> None:
    """Kills the processes, and waits until the scorer has noticed."""
    for pid in pids_of(scorer):
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: scorer.wait(0.1) or not scorer.processes, "the loss of the processes")


CROWDED = """
import os
from pathlib import Path
from tests.workers.side_by_side import computes
if Path("full").exists():
    with open("tries", "a") as tries:
        tries.write("x")
    os.kill(os.getpid(), 9)  # as the kernel does when memory is short
"""


class Crowded:
    """A machine that has room for another process of the environment, or none for now."""

    def __init__(self, folder: Path) -> None:
        self._full, self._tries = folder / "full", folder / "tries"
        self.notes = folder / "notes"
        self.notes.mkdir()
        (folder / "crowded.py").write_text(CROWDED)

    def fill(self) -> None:
        self._tries.write_text("")
        self._full.touch()

    @property
    def tries(self) -> int:
        """The number of processes that have died here."""
        return len(self._tries.read_text())

    def clear(self) -> None:
        self._full.unlink()


@pytest.fixture
def crowded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Crowded:
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{Path.cwd()}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(scorer_module, "START_AGAIN_S", 0.01)
    return Crowded(tmp_path)


@pytest.mark.slow
def test_a_process_that_cannot_be_started_for_a_while_is_started_later(
    crowded: Crowded, caplog: pytest.LogCaptureFixture
) -> None:
    with scorer(kind="function", function="crowded:computes", processes=2) as one:
        one.wait_ready()
        crowded.fill()
        calls = [Call(answers(["x"], str(crowded.notes), meet=2)) for _ in range(2)]
        for call in calls:
            one.ask(call)
        wait_until(lambda: one.wait(0.1) or crowded.tries > 2, "further tries")
        crowded.clear()
        ended = list[Call]()
        wait_until(lambda: ended.extend(one.wait(0.1)) or len(ended) == 2, "the rewards of two processes")
        assert len({call.rewards.values[0] for call in ended}) == 2
    assert caplog.text.count("goes on with 1 of its processes") == 1


def test_an_idle_process_that_dies_is_told_and_replaced_once_that_is_possible(
    crowded: Crowded, caplog: pytest.LogCaptureFixture
) -> None:
    with scorer(kind="function", function="crowded:computes", processes=1) as one:
        one.wait_ready()
        crowded.fill()
        kill(one)
        one.ask(Call(answers(["x"], str(crowded.notes), meet=1)))
        wait_until(lambda: one.wait(0.1) or crowded.tries > 1, "further tries")
        crowded.clear()
        ended = list[Call]()
        wait_until(lambda: ended.extend(one.wait(0.1)) or ended, "the reward")
        assert ended[0].rewards.values
    assert caplog.text.count("ended with -9 (negative: the signal); it had no call") == 1


def test_a_process_for_which_the_worker_has_no_descriptors_is_started_once_it_has_some(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(scorer_module, "START_AGAIN_S", 0.01)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with scorer(kind="function", function="tests.workers.programs:ill_mannered") as one:
        one.wait_ready()
        kill(one)
        with Path(os.devnull).open() as lowest:
            resource.setrlimit(resource.RLIMIT_NOFILE, (lowest.fileno(), limits[1]))
        try:
            one.ask(Call(answers(["well"])))
            wait_until(lambda: one.wait(0.1) or "cannot be started: [Errno 24]" in caplog.text, "word of it")
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        wait_until(lambda: [call.rewards.values for call in one.wait(0.1)], "the reward")


@pytest.mark.slow
def test_an_environment_that_can_no_longer_be_started_ends_the_worker_after_some_tries(
    crowded: Crowded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scorer_module, "STARTS_MAX", 2)
    with scorer(kind="function", function="crowded:computes", processes=1) as one:
        one.wait_ready()
        crowded.fill()
        kill(one)
        one.ask(Call(answers(["x"], str(crowded.notes), meet=1)))
        with pytest.raises(ConfigError, match="ended with -9 while starting"):
            wait_until(lambda: one.wait(0.1), "the error")
        assert crowded.tries == 2


def test_a_stopped_environment_fails_the_call_that_it_has_and_is_replaced() -> None:
    with scorer(kind="function", function="tests.workers.programs:ill_mannered", timeout_s=2.0) as one:
        one.wait_ready()
        for pid in pids_of(one):
            os.kill(pid, signal.SIGSTOP)
        with pytest.raises(ScoringError, match="timeout_s = 2"):
            score(one, answers(["well"]))
        assert score(one, answers(["well"])) == [1.0]
        for pid in pids_of(one):
            os.kill(pid, signal.SIGSTOP)


def test_a_process_that_does_not_end_is_left_behind(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The kernel may hold even a killed process, as while a mount hangs."""
    monkeypatch.setattr(process_module, "GONE_S", 0.0)
    with scorer(kind="function", function="tests.workers.rewards:misbehaves", timeout_s=1.0) as one:
        with pytest.raises(ScoringError, match="timeout_s = 1"):
            score(one, answers(["hang"]))
        assert score(one, answers(["well"])) == [1.0]
    assert "has not ended in 0 s" in caplog.text
