"""Configurations of runs whose services are embedded."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from echo_queue.config import Config


@pytest.fixture
def configure(tmp_path: Path) -> Callable[..., Config]:
    """`configure(redis={…}, store={…})` gives a config of a run in this test's directory."""

    def make(directory: Path = tmp_path / "run", **sections: Any) -> Config:
        return Config.model_validate({"run": {"name": "test", "dir": directory}, **sections})

    return make
