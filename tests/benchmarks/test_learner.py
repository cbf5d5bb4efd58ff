"""The learner's benchmark runs as a whole where there is no GPU."""

import subprocess
import sys

import orjson
import pytest


@pytest.mark.slow
def test_all_of_it_runs_with_tiny_shapes() -> None:
    command = [sys.executable, "-m", "benchmarks.learner", "--fake", "--json", "--repeats", "1"]
    done = subprocess.run(command, capture_output=True, timeout=300, check=True)
    verdict = orjson.loads(done.stdout.splitlines()[-1])
    assert verdict["ok"]
    ways = {(row["mix"], row["way"]) for row in verdict["figures"]}
    assert {way for _, way in ways} >= {"ours", "transformers"}
    assert len({mix for mix, _ in ways}) == 2


@pytest.mark.slow
def test_without_a_gpu_real_shapes_are_refused() -> None:
    command = [sys.executable, "-m", "benchmarks.learner"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=300, check=False, env={"CUDA_VISIBLE_DEVICES": ""}
    )
    assert done.returncode == 2
    assert "there is no GPU here" in done.stderr
