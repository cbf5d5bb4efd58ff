from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.workers.small import save_model
from tests.workers.stage import Stage


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The base model of these tests."""
    return save_model(tmp_path_factory.mktemp("base"), seed=0)


@pytest.fixture
def stage(tmp_path: Path, folder: Path) -> Iterator[Callable[..., Stage]]:
    """Sets the stage for workers, and ends everything on it after the test."""
    set_up: list[Stage] = []

    def begin(model_folder: Path = folder, /, **settings: object) -> Stage:
        set_up.append(Stage(tmp_path, model_folder, **settings))
        return set_up[-1]

    yield begin
    for one in set_up:
        one.end()
