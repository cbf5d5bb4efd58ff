"""All that was acknowledged is there after SIGKILL of the server, and the run goes on."""

from dataclasses import replace
from pathlib import Path

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from echo_queue.queue import Outcome
from tests.queue.clients import Clients
from tests.queue.queue_harness import RULES, QueueHarness
from tests.servers.redis import KINDS, start_redis


@pytest.mark.parametrize("kind", KINDS)
def test_sigkill_of_the_server_loses_nothing_that_was_acknowledged(kind: str, tmp_path: Path) -> None:
    server = start_redis(kind, tmp_path)
    try:
        client = redis.Redis(port=server.port, protocol=2, retry=Retry(NoBackoff(), 0), socket_timeout=10.0)
        harness = QueueHarness(Clients(client, "run", deadline_s=20.0), replace(RULES, s=9), prompts=30)
        for _ in range(3):
            tasks = harness.lease(4)
            harness.complete(tasks[:3])
            before = harness.queue.audit()
            server.kill()
            server.start()
            assert harness.queue.audit() == before
            # the lease outlives the server
            assert harness.complete(tasks[3:]) == [Outcome.accepted]
            drained = harness.drain(2)
            server.kill()
            server.start()
            harness.advance(2)
            harness.publish(harness.learner_version)
            assert harness.commit([group.task for group in drained.groups]) == 2
        assert harness.queue.audit().trained == 6
    finally:
        server.stop()
