"""What embedded services whose roles were started one by one leave for those who ask after their end."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from echo_queue.config import Config
from echo_queue.config.loading import load
from echo_queue.connections.endpoints import services_dir
from echo_queue.reporting import outcome
from tests.waiting import DEADLINE_S, wait_until

COMMAND = [sys.executable, "-m", "echo_queue.cli"]


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "run.toml"
    path.write_text('[run]\nname = "hand"\ndir = "runs/hand"\n[prompts]\nset = "p"\nsource = "none.jsonl"\n')
    return load(path, {})


@contextmanager
def serving(config: Config, *options: str) -> Iterator[None]:
    """Keeps the services alive until the end of the context, where they are told to end."""
    with subprocess.Popen([*COMMAND, "services", "run.toml", *options], stderr=subprocess.DEVNULL) as services:
        wait_until((services_dir(config) / "store.json").exists, "the embedded services")
        yield
        services.terminate()
        assert services.wait(DEADLINE_S) == 0


def asked(*words: str) -> str:
    command = [*COMMAND, *words, "run.toml"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_status_and_audit_answer_and_a_watch_ends_once_the_services_have_ended(config: Config) -> None:
    with serving(config):
        asked("audit")
        assert outcome.read(config) is None
    asked("audit")
    assert all("as of its end" in asked(*words) for words in (["status"], ["status", "--watch"]))
    kept = outcome.read(config)
    assert kept is not None and not kept.finished
    with serving(config):
        wait_until(lambda: outcome.read(config) is None, "the end of what was kept of services that serve again")


@pytest.mark.slow
def test_a_run_keeps_its_last_answers_itself(config: Config) -> None:
    with serving(config, "--within-run"):
        pass
    assert outcome.read(config) is None
