"""A run's configuration whose services are embedded, and a small disk that fills up."""

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from echo_queue.config import Config

SMALL_DISK_MIB = 24


@pytest.fixture
def configure(tmp_path: Path) -> Callable[..., Config]:
    """`configure(redis={…}, store={…})` gives a config of a run in this test's directory."""

    def make(directory: Path = tmp_path / "run", **sections: Any) -> Config:
        return Config.model_validate({"run": {"name": "test", "dir": directory}, **sections})

    return make


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of `SMALL_DISK_MIB`."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={SMALL_DISK_MIB}m", "none", str(place)]
    if os.geteuid() != 0 or subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("mounting a small disk takes root")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)
