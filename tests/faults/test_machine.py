"""The state machine in CI: on Redis and on Valkey, other stories each time."""

import pytest
from hypothesis import HealthCheck, settings

from echo_queue.services.redis_server import RedisServer
from tests.faults.machine import Machine


@pytest.mark.slow
@pytest.mark.timeout(600)  # to shrink a failing story takes up to five minutes
def test_whatever_happens_every_task_is_where_the_reference_says_and_trained_once(redis_server: RedisServer) -> None:
    Machine.server = redis_server
    Machine.TestCase.settings = settings(
        max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
    )
    Machine.TestCase().runTest()
