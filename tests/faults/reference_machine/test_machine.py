"""The state machine: on Redis and on Valkey, other stories each time."""

import pytest
from hypothesis import HealthCheck, settings

from echo_queue.launch.servers.redis_server import RedisServer
from tests.faults.reference_machine.machine import Machine
from tests.tiers import whole


@pytest.mark.slow
@pytest.mark.timeout(600)  # to shrink a failing story takes up to five minutes
def test_whatever_happens_every_task_is_where_the_reference_says_and_trained_once(redis_server: RedisServer) -> None:
    tell(redis_server, stories=20)


@pytest.mark.proof(kind="stories", share=0.5)
@pytest.mark.timeout(3600)
def test_in_many_stories_too(redis_server: RedisServer) -> None:
    tell(redis_server, stories=1_000 if whole() else 60)


def tell(server: RedisServer, stories: int) -> None:
    Machine.server = server
    Machine.TestCase.settings = settings(
        max_examples=stories, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
    )
    Machine.TestCase().runTest()
