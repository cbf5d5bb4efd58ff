"""What `echo-queue init` has written trains to its end as it is."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


def test_a_configuration_that_init_wrote_trains_to_its_end_without_an_edit(tmp_path: Path, base: Path) -> None:
    rows = [{"question": f"{number} and 1?", "answer": f"so\n#### {number + 1}"} for number in range(6)]
    (tmp_path / "sums.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    said = ""
    for words in (("init", "sums.jsonl", "--model", str(base)), ("run", "run.toml")):
        command = [sys.executable, "-m", "echo_queue.cli", *words]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        said = done.stdout + done.stderr
    assert "submitted 6 = backlog 0 + tasks 0 + replay 0 + trained 6 + dead 0" in said
    assert (tmp_path / "runs/run/model/model.safetensors").exists()
