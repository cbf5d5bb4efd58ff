"""However large the state is, saving and loading it take the memory of a few files."""

from dataclasses import replace

import pytest

from benchmarks.checkpoint import RUN, SLACK_BYTES, measured
from echo_queue.connections.storage.object_store import ObjectStore
from echo_queue.launch.servers.s3_server import S3Server
from learner.recovery.state_files import THREADS

GIGABYTES, FILE_BYTES = 0.25, 8 << 20


@pytest.mark.slow
def test_saving_and_loading_take_the_memory_of_a_few_files(s3_server: S3Server) -> None:
    endpoint = replace(s3_server.endpoint("memory"), put_once=False)
    store = ObjectStore(endpoint, RUN)
    store.create_bucket()
    bound = THREADS * FILE_BYTES + SLACK_BYTES
    try:
        for action in ("save", "load"):
            assert measured(action, endpoint, GIGABYTES, FILE_BYTES).extra_bytes <= bound, action
    finally:
        store.delete([stored.key for stored in store.list()])
