"""The benchmark of a run's age runs as a whole, with little behind it; nothing is asserted of its times."""

import subprocess
import sys

import orjson
import pytest

WORDS = ("--prompts", "1300", "--updates", "130", "--checkpoints", "130", "--json")


@pytest.mark.proof(kind="benchmarks", share=0.15)
@pytest.mark.timeout(900)
def test_a_small_history_is_archived_followed_and_measured() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "benchmarks.growth", *WORDS], capture_output=True, text=True, timeout=800, check=False
    )
    assert ended.stdout, ended.stderr
    figures = orjson.loads(ended.stdout.splitlines()[-1])["figures"]
    assert figures["age"]["prompts"] == 1_300
    assert figures["checkpoint_objects"] < 130, "two archives of 64, and what is newer"
    assert figures["dead_bytes"] < 4_000
