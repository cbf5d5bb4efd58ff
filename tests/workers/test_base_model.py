"""A worker that waits for the base model."""

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from echo_queue.config import Config
from echo_queue.connections.storage.object_store import MissingObject
from tests.forbidden import forbidden
from workers import base_model


class Store:
    """An object store into which the learner's folder comes after some looks."""

    prefix = "run/"

    def __init__(self, looks: int) -> None:
        self.looks = looks

    def download_folder(self, prefix: str, folder: Path) -> None:
        self.looks -= 1
        if self.looks >= 0:
            raise MissingObject(prefix)
        folder.mkdir(parents=True)


class AskedStore(Store):
    """An object store that has the folder, and says so by an error."""

    def download_folder(self, prefix: str, folder: Path) -> None:
        raise FileExistsError(prefix)


def test_a_folder_that_this_user_may_not_enter_comes_from_the_store(
    configure: Callable[..., Config], tmp_path: Path
) -> None:
    base = tmp_path / "another" / "base"
    base.mkdir(parents=True)
    config = configure(model={"base": str(base)})
    assert base_model.find(config, AskedStore(0), threading.Event()) == str(base)  # type: ignore[arg-type]
    with forbidden(base.parent), pytest.raises(FileExistsError):
        base_model.find(config, AskedStore(0), threading.Event())  # type: ignore[arg-type]


@pytest.mark.parametrize(("base", "asked"), [("models/mine", 3), ("init", 0)])
def test_it_says_once_what_it_waits_for_and_asks_the_hub_ever_less_often(
    base: str,
    asked: int,
    configure: Callable[..., Config],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    config: Any = configure(model={"base": base})
    calls, clock = list[float](), [100.0]

    def hub(_: Config) -> str:
        calls.append(clock[0])
        raise OSError("the hub gave no models/mine")

    def tick(_: float) -> None:
        clock[0] += 1.0

    shutdown = threading.Event()
    monkeypatch.setattr(base_model, "base_folder", hub)
    monkeypatch.setattr(base_model.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(shutdown, "wait", tick)
    with caplog.at_level(logging.INFO):
        found = base_model.find(config, Store(looks=10), shutdown)  # type: ignore[arg-type]
    assert Path(found).is_dir()
    (said,) = [record.getMessage() for record in caplog.records if record.name == "workers.base_model"]
    assert said.startswith("waits for the learner to store the base model, for ")
    assert calls == [100.0, 102.0, 106.0][:asked]
