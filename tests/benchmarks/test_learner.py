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
    rows = verdict["figures"]
    assert {row["way"] for row in rows} >= {"ours", "transformers"}
    assert len({row["mix"] for row in rows}) == 2
    for row in rows:
        assert row["seconds"] > 0 and row["parts"]["matrix products"] > 0
        stages = row["stages"] or {}
        assert (min(stages.values(), default=0.0) > 0) == (row["way"] == "ours")


@pytest.mark.proof(kind="ranks", share=0.25)
def test_two_ranks_share_a_model() -> None:
    command = [sys.executable, "-m", "benchmarks.learner", "--fake", "--json", "--repeats", "1", "--ranks", "2"]
    done = subprocess.run(command, capture_output=True, timeout=300, check=True)
    verdict = orjson.loads(done.stdout.splitlines()[-1])
    assert verdict["ok"]
    assert {(row["ranks"], row["way"]) for row in verdict["figures"]} == {(2, "ours")}


@pytest.mark.slow
def test_without_a_gpu_real_shapes_are_refused() -> None:
    command = [sys.executable, "-m", "benchmarks.learner"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=300, check=False, env={"CUDA_VISIBLE_DEVICES": ""}
    )
    assert done.returncode == 2
    assert "there is no GPU here" in done.stderr
