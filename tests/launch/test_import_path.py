"""A user's folder may hold modules with the names of packages: no process of ours imports them in their place."""

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from echo_queue.cli.run.roles import ECHO_QUEUE
from echo_queue.config import Environment, module_search
from echo_queue.launch.import_path import PYTHON
from tests.workers.asking import score
from workers.environments.protocol import ScoringRequest
from workers.environments.scorer import Scorer

NAMES = ("learner", "redis", "celery", "boto3", "orjson", "pydantic", "numpy", "logging")
CONFIG = 'run = { name = "mine", dir = "mine" }\nredis = { url = "redis://127.0.0.1:9/0" }\n'
REWARDS = "import mine\ndef right(completions, **columns): return [mine.one for _ in completions]\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder: modules that say that they were imported, and a user's own."""
    for name in NAMES:
        (tmp_path / f"{name}.py").write_text(f"raise SystemExit('{name}.py was imported')\n")
    (tmp_path / "workers").mkdir()
    (tmp_path / "workers" / "__init__.py").write_text("raise SystemExit('workers was imported')\n")
    (tmp_path / "run.toml").write_text(CONFIG)
    (tmp_path / "rewards.py").write_text(REWARDS)
    (tmp_path / "mine.py").write_text("one = 1.0\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    "command",
    [
        (*ECHO_QUEUE, "config", "reference"),
        (*PYTHON, "-m", "echo_queue.launch.entry", "learner", "--help"),
        (*PYTHON, "-m", "echo_queue.launch.entry", "workers", "--help"),
        (*PYTHON, "-m", "celery", "-A", "echo_queue.submission", "report"),
        (str(Path(sys.executable).with_name("celery")), "-A", "echo_queue.submission", "report"),
    ],
    ids=["command", "learner", "worker", "celery of a run", "celery of a user"],
)
def test_a_role_imports_installed_packages_whatever_the_folder_holds(folder: Path, command: Sequence[str]) -> None:
    environ = os.environ | {"ECHO_QUEUE_CONFIG": str(folder / "run.toml")}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "was imported" not in done.stdout + done.stderr


@pytest.mark.usefixtures("folder")
def test_a_reward_function_of_the_folder_is_found_with_the_modules_beside_it() -> None:
    scorer = Scorer(Environment(kind="function", function="rewards:right"))
    try:
        request = ScoringRequest("one", ["two"], [[2]], {}, ["stop"], [0])
        assert score(scorer, request) == [1.0]
    finally:
        scorer.close()


def test_the_modules_that_nothing_can_import_are_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [file.name for file in module_search.hidden()] == sorted((*(f"{name}.py" for name in NAMES), "workers"))
    monkeypatch.setenv("PYTHONPATH", str(folder))
    monkeypatch.syspath_prepend(folder)
    left = [file.name for file in module_search.hidden()]
    assert left == ["learner.py", "logging.py", "workers"], "PYTHONPATH precedes what is installed"


def test_every_deployment_starts_python_without_the_current_folder() -> None:
    root = Path(__file__).parents[2]
    within = (path for path in (root / "infra").rglob("*") if path.is_file() and path.suffix != ".pyc")
    files = [root / "compose.yaml", *within]
    started = [line for file in files for line in file.read_text().splitlines() if "echo_queue.launch.entry" in line]
    words = [re.findall(r"[\w.-]+", line) for line in started]
    assert len(started) == 3
    assert all("python3 -P -m echo_queue.launch.entry" in " ".join(each) for each in words), started
