"""What a terminal shows of a run that this command supervises, and what stays on it."""

from collections.abc import Callable
from pathlib import Path

import pytest

from echo_queue.cli.run.start import Pipeline
from echo_queue.config import Config
from echo_queue.errors import HopelessError, Problem
from echo_queue.launch.supervisor import Supervisor


@pytest.mark.parametrize(
    ("error", "phase"),
    [(HopelessError(Problem("run", "all died", "fix that")), "failed"), (KeyboardInterrupt(), "stopped")],
)
def test_the_picture_that_stays_says_how_the_run_ended(
    configure: Callable[..., Config],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: BaseException,
    phase: str,
) -> None:
    def train(pipeline: Pipeline, watcher: object, screen: object) -> None:
        raise error

    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setattr(Pipeline, "_train", train)
    config = configure()
    with Supervisor(config.run.dir) as roles, pytest.raises(type(error)):
        Pipeline(config, Path("run.toml"), roles).run()
    shown = capsys.readouterr().out
    last = shown.rpartition(" echo-queue ")[2]
    assert phase in last
