"""Celery takes JSON and nothing else: a pickle from a broker is code from any process that can write there."""

import pytest
from kombu import Consumer
from kombu.exceptions import ContentDisallowed
from kombu.serialization import dumps, loads

from echo_queue.submission.celery.app import build
from tests.submission.conftest import SubmissionHarness


def test_celery_takes_json_and_nothing_else(harness: SubmissionHarness) -> None:
    app = build(harness.config())
    assert list(app.conf.accept_content) == ["json"]
    assert {app.conf.task_serializer, app.conf.event_serializer, app.conf.result_serializer} == {"json"}
    pickled = dumps({"set": "mine"}, serializer="pickle")
    with app.connection_for_read() as connection:
        consumer = Consumer(connection.channel(), accept=app.conf.accept_content, auto_declare=False)
        with pytest.raises(ContentDisallowed):
            loads(pickled[2], pickled[0], pickled[1], accept=consumer.accept)
