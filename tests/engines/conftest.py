import importlib.util
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from echo_queue.config import Config
from echo_queue.records import Version
from tests.engines.models import LONGEST, parameters, save_model
from tests.engines.serving import ANSWER_S, PACKING, START_S, UNFIT, Servers
from workers import engines
from workers.engines import Engine

IN_PROCESS = ("transformers", "vllm")
ENGINES = ("transformers", "http", "vllm")
"""In the order in which they are tested."""
VLLM_IS_HERE = importlib.util.find_spec("vllm") is not None
BASE = Version(1, 0)
MAX_PROMPT = 128

torch.set_num_threads(1)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Gives tests that may wait for a start of vLLM the time for it."""
    for item in items:
        if VLLM_IS_HERE and item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.timeout(2 * START_S))


class Opener:
    """Opens engines by configuration alone, one at a time; the last one serves again if its settings are the same."""

    def __init__(self, name: str, directory: Path, servers: Servers | None = None) -> None:
        self.name = name
        self._servers = servers
        self._directory = directory
        self._settings: tuple[object, ...] | None = None
        self._engine: Engine | None = None

    def __call__(self, folder: Path, **rollout: Any) -> Engine:
        settings = (folder, tuple(rollout.items()))
        if self._engine is None or self._engine.running or settings != self._settings:
            self.close()
            if self.name == "vllm":
                import numba  # noqa: F401 (a worker decodes weights with it before it opens vLLM)
            self._engine = engines.create(self._config(folder, rollout), str(folder), BASE, [])
            self._settings = settings
        elif self._engine.version != BASE:
            self._engine.load(BASE, parameters(folder))
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
        if self.name == "http":
            assert self._servers is not None
            url, weights = self._servers.of(folder).url, str(self._directory / "weights")
            rollout = {"http": {"url": url, "weights_dir": weights, "deadline_s": ANSWER_S}, **rollout}
        model = {"base": str(folder), "max_prompt_tokens": MAX_PROMPT, "max_new_tokens": LONGEST - MAX_PROMPT}
        return Config.model_validate(
            {
                "run": {"name": "engines", "dir": str(self._directory)},
                "model": model,
                "rollout": {"engine": self.name, "group_size": 16, "concurrent_groups": 16, **rollout},
            }
        )


Saved = Callable[..., Path]


@pytest.fixture(scope="package")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Saved:
    """Saves a model when it is asked for the first time; asked again, gives the same folder."""

    @cache
    def save(seed: int, tied: bool, stops: bool) -> Path:
        settings = {} if stops else {"eos_token_id": None}
        return save_model(tmp_path_factory.mktemp("model"), seed, tied=tied, **settings)

    def saved(seed: int, *, tied: bool = True, stops: bool = True) -> Path:
        return save(seed, tied, stops)

    return saved


@pytest.fixture(scope="package")
def servers(tmp_path_factory: pytest.TempPathFactory, saved: Saved) -> Iterator[Servers]:
    """The servers in the order in which tests need them: of the two usual shapes, and those that do not fit."""
    if not VLLM_IS_HERE:
        pytest.skip("vLLM is not installed here: docs/engines.md")
    servers = Servers(tmp_path_factory.mktemp("servers"))
    for tied in (True, False):
        servers.expect(saved(1, tied=tied))
    for odd in (UNFIT, PACKING):
        servers.expect(saved(1), **odd)
    yield servers
    servers.kill()


@pytest.fixture(scope="package", params=ENGINES)
def opener(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opener]:
    if request.param != "transformers" and not VLLM_IS_HERE:
        pytest.skip("vLLM is not installed here: docs/engines.md")
    servers = request.getfixturevalue("servers") if VLLM_IS_HERE and request.param != "vllm" else None
    opener = Opener(request.param, tmp_path_factory.mktemp("run"), servers)
    yield opener
    opener.close()
    if servers is not None:
        servers.go_on()


@pytest.fixture(scope="package")
def folder(saved: Saved) -> Path:
    """The model that most tests serve: its head is the embedding."""
    return saved(1)


@pytest.fixture(scope="package")
def newer(saved: Saved) -> Path:
    """The same model after an update."""
    return saved(2)


@pytest.fixture(scope="package")
def endless(saved: Saved) -> Path:
    """A model that never stops by itself."""
    return saved(1, stops=False)
