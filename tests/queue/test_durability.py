"""What was acknowledged is there after SIGKILL of the server, and the run goes on."""

from dataclasses import replace
from pathlib import Path

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from echo_queue.queue import Outcome
from tests.queue.clients import Clients
from tests.queue.scene import RULES, Scene
from tests.servers.redis import KINDS, start_redis


@pytest.mark.parametrize("kind", KINDS)
def test_sigkill_of_the_server_loses_nothing_that_was_acknowledged(kind: str, tmp_path: Path) -> None:
    server = start_redis(kind, tmp_path)
    try:
        client = redis.Redis(port=server.port, protocol=2, retry=Retry(NoBackoff(), 0), socket_timeout=10.0)
        scene = Scene(Clients(client, "run", deadline_s=20.0), replace(RULES, s=9), prompts=30)
        for _ in range(3):
            tasks = scene.lease(4)
            scene.complete(tasks[:3])
            before = scene.queue.audit()
            server.kill()
            server.start()
            assert scene.queue.audit() == before
            # the lease outlives the server
            assert scene.complete(tasks[3:]) == [Outcome.accepted]
            drained = scene.drain(2)
            server.kill()
            server.start()
            scene.advance(2)
            scene.publish(scene.learner_version)
            assert scene.commit([group.task for group in drained.groups]) == 2
        assert scene.queue.audit().trained == 6
    finally:
        server.stop()
