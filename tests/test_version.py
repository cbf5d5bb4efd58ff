"""The version of a checkout that was never installed."""

import subprocess
import sys
import tomllib

from tests.source_code import ROOT


def test_a_checkout_that_was_never_installed_knows_its_version() -> None:
    done = subprocess.run(
        [sys.executable, "-S", "-c", "import echo_queue; print(echo_queue.__version__)"],
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert done.stdout.strip() == tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
