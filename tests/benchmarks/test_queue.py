"""The queue's benchmark measures all that it names, and its last line is one document."""

import subprocess
import sys

import orjson
import pytest


@pytest.mark.slow
def test_the_last_line_is_a_document_with_each_figure_and_target() -> None:
    command = [sys.executable, "-m", "benchmarks.queue", "--json", "--groups", "32", "--rounds", "2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode in (0, 1), done.stderr  # so few groups say nothing about the targets
    told = orjson.loads(done.stdout.splitlines()[-1])
    assert told["ok"] == all(told["targets"].values()) and len(told["targets"]) == 4
    figures, signs = told["figures"], told["figures"]["signs_of_life"]
    assert figures["groups"] == 32
    assert all(figures[name] > 0 for name in ("ratio", "pipeline_rl_ratio", "bytes_per_group", "group_us"))
    assert all(signs[name] > 0 for name in ("heartbeat_us", "before_us", "sweep_us"))
