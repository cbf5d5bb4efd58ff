import pytest

from echo_queue.connections.storage.object_store import ObjectStore
from tests.queue.clients import Clients


@pytest.fixture
def spilling(queue: Clients, object_store: ObjectStore) -> Clients:
    """The queue of a fresh run in which every group and every partial rollout is too large for Redis."""
    return Clients(queue.client, queue.run, object_store, inline_max_bytes=10, deadline_s=10.0)
