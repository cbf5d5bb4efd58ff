"""A minute of the storm, with a new seed each time; `make storm` is the long form."""

import os
import secrets
import subprocess
import sys
from pathlib import Path

import pytest

DURATION_S = 60


@pytest.mark.slow
@pytest.mark.timeout(420)
def test_whatever_is_killed_or_stopped_nothing_is_lost_or_trained_twice(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    seed = secrets.randbelow(2**31)
    with capfd.disabled():
        print(f"\nstorm of {DURATION_S} s with seed {seed}", flush=True)
    storm = subprocess.run(
        [sys.executable, "-m", "tests.faults.storm", "--seed", str(seed), "--duration", str(DURATION_S)],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=400,
        check=False,
    )
    assert storm.returncode == 0, storm.stdout
