"""One S3 server for the tests of the learner, and a bucket's worth of objects for each."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from echo_queue.connections.secrets import StoreKeys
from echo_queue.connections.storage.object_store import ObjectStore
from echo_queue.launch.servers.s3_server import S3Server
from tests.learner.learner_harness import LearnerHarness


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    """The cores are shared with the servers and processes that tests start."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    server = S3Server(tmp_path_factory.mktemp("s3"), StoreKeys("LEARNERTESTKEY000000", "s" * 40))
    server.start()
    yield server
    server.stop()


@pytest.fixture
def store(s3_server: S3Server, tmp_path: Path) -> ObjectStore:
    """Objects of a run that no other test uses."""
    store = ObjectStore(s3_server.endpoint("tests"), tmp_path.name)
    store.create_bucket()
    return store


@pytest.fixture
def usual_algorithms(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Torch's algorithms, and the variable for them, are afterwards what they are without `learner.deterministic`."""
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", "")
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG")
    yield
    torch.use_deterministic_algorithms(False)
    torch.utils.deterministic.fill_uninitialized_memory = True


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[LearnerHarness]:
    """A run of its own, with its services."""
    with LearnerHarness(tmp_path) as harness:
        yield harness
