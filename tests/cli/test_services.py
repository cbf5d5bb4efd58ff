"""What embedded services whose roles were started one by one leave for those who ask after their end."""

import subprocess
import sys
from pathlib import Path

import pytest

from echo_queue.config.loading import load
from echo_queue.connections.endpoints import services_dir
from echo_queue.reporting import outcome
from tests.waiting import DEADLINE_S, wait_until


@pytest.mark.slow
def test_status_and_audit_answer_and_a_watch_ends_once_the_services_have_ended(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text('[run]\nname = "hand"\ndir = "runs/hand"\n[prompts]\nset = "p"\nsource = "none.jsonl"\n')
    command = [sys.executable, "-m", "echo_queue.cli"]
    config = load(path, {"ECHO_QUEUE_RUN__DIR": str(tmp_path / "runs/hand")})

    def asked(*words: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [*command, *words, str(path)], cwd=tmp_path, capture_output=True, text=True, timeout=DEADLINE_S, check=False
        )

    with subprocess.Popen([*command, "services", str(path)], cwd=tmp_path, stderr=subprocess.DEVNULL) as services:
        wait_until((services_dir(config) / "store.json").exists, "the embedded services")
        assert asked("audit").returncode == 0
        assert outcome.read(config) is None
        services.terminate()
        assert services.wait(DEADLINE_S) == 0
    assert asked("audit").returncode == 0
    for words in (["status"], ["status", "--watch"]):
        told = asked(*words)
        assert told.returncode == 0, told.stderr
        assert "as of its end" in told.stdout
    kept = outcome.read(config)
    assert kept is not None and not kept.finished
