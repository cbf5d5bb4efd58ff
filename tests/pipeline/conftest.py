import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.pipeline.supervised_run import TINY, SupervisedRun


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny base model, made once: it is the same for every run of these tests."""
    directory = tmp_path_factory.mktemp("base")
    command = [sys.executable, "-m", "echo_queue.cli", "init-model", str(TINY)]
    subprocess.run(command, cwd=directory, check=True, timeout=900)
    return directory / "run" / "base"


@pytest.fixture
def start(tmp_path: Path, base: Path) -> Iterator[Callable[..., SupervisedRun]]:
    """Starts the tiny run on the ready base model; nothing of it is left after the test."""
    started: list[SupervisedRun] = []

    def begin(path: Path = TINY, **overrides: str) -> SupervisedRun:
        started.append(SupervisedRun(tmp_path, base, path, **overrides))
        return started[-1]

    yield begin
    for run in started:
        run.stop()
