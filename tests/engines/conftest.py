import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from echo_queue.config import Config
from echo_queue.records import Version
from tests.engines.models import LONGEST, save_model
from tests.engines.serving import Servers
from workers import engines
from workers.engines import Engine

IN_PROCESS = ("transformers", "vllm")
ENGINES = (*IN_PROCESS, "http")
BASE = Version(1, 0)
MAX_PROMPT = 128

torch.set_num_threads(1)


class Opener:
    """Opens engines by configuration alone, one at a time; reuses the last one if its settings are the same."""

    def __init__(self, name: str, directory: Path, servers: Servers | None = None) -> None:
        self.name = name
        self._servers = servers
        self._directory = directory
        self._settings: tuple[object, ...] | None = None
        self._engine: Engine | None = None

    def __call__(self, folder: Path, **rollout: Any) -> Engine:
        settings = (folder, tuple(rollout.items()))
        used = self._engine is None or self._engine.running or self._engine.version != BASE
        if used or settings != self._settings:
            self.close()
            self._engine = engines.create(self._config(folder, rollout), str(folder), BASE, [])
            self._settings = settings
        assert self._engine is not None
        return self._engine

    @property
    def reads_anew(self) -> bool:
        """Samples under way keep no cache of older weights at a swap."""
        return self.name == "http"

    def close(self) -> None:
        if self._engine is not None:
            self._engine.close()
        self._engine = None

    def _config(self, folder: Path, rollout: dict[str, Any]) -> Config:
        if self._servers is not None:
            url, weights = self._servers.of(folder).url, str(self._directory / "weights")
            rollout = {"http": {"url": url, "weights_dir": weights, "deadline_s": 60}, **rollout}
        model = {"base": str(folder), "max_prompt_tokens": MAX_PROMPT, "max_new_tokens": LONGEST - MAX_PROMPT}
        return Config.model_validate(
            {
                "run": {"name": "engines", "dir": str(self._directory)},
                "model": model,
                "rollout": {"engine": self.name, "group_size": 16, "concurrent_groups": 16, **rollout},
            }
        )


@pytest.fixture(scope="package")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """Starts servers of the two shapes that most tests need, both at once, because a start is slow."""
    servers = Servers(tmp_path_factory.mktemp("servers"))
    for tied in (True, False):
        servers.expect(save_model(tmp_path_factory.mktemp("served"), 1, tied=tied))
    yield servers
    servers.kill()


@pytest.fixture(scope="package", params=ENGINES)
def opener(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opener]:
    if request.param != "transformers" and importlib.util.find_spec("vllm") is None:
        pytest.skip("vLLM is not installed here: docs/engines.md")
    servers = request.getfixturevalue("servers") if request.param == "http" else None
    opener = Opener(request.param, tmp_path_factory.mktemp("run"), servers)
    yield opener
    opener.close()


@pytest.fixture(scope="package")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model that most tests serve: its head is the embedding."""
    return save_model(tmp_path_factory.mktemp("base"), 1)


@pytest.fixture(scope="package")
def newer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same model after an update."""
    return save_model(tmp_path_factory.mktemp("newer"), 2)


@pytest.fixture(scope="package")
def endless(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that never stops by itself."""
    return save_model(tmp_path_factory.mktemp("endless"), 1, eos_token_id=None)
