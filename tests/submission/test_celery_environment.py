"""Celery's variables in a user's shell say nothing about the run's application, and all about the user's own."""

import pytest
from celery import Celery

from echo_queue.connections.endpoints import celery_broker_url
from echo_queue.queue import Chunk
from echo_queue.submission.celery.app import build
from echo_queue.submission.celery.messages import messages_waiting, send
from tests.submission.conftest import SubmissionHarness

ELSEWHERE = "redis://127.0.0.1:9/0"
URLS = ("CELERY_BROKER_URL", "CELERY_BROKER_READ_URL", "CELERY_BROKER_WRITE_URL", "CELERY_RESULT_BACKEND")
OTHERS = {"CELERY_LOADER": "default", "CELERY_CONFIG_MODULE": "nowhere", "DJANGO_SETTINGS_MODULE": "nowhere"}


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {**dict.fromkeys(URLS, ELSEWHERE), **OTHERS}.items():
        monkeypatch.setenv(name, value)


@pytest.mark.usefixtures("shell")
def test_chunks_go_to_the_runs_broker_whatever_variables_celery_has(harness: SubmissionHarness) -> None:
    app, ours = build(harness.config()), celery_broker_url(harness.config())
    conf = app.conf
    assert (conf.broker_url, conf.broker_read_url, conf.broker_write_url, conf.result_backend) == (ours,) * 4
    send(app, "mine", "prompts.jsonl", [Chunk(0, 0, 1)])
    assert messages_waiting(app) == 1
    assert app.AsyncResult("unknown").state == "PENDING", "the server of results is ours, and answers"
    assert not app.fixups, "Django's settings, where Django is installed, are not ours"


@pytest.mark.usefixtures("shell")
def test_an_application_of_the_users_own_in_the_same_process_still_heeds_them(harness: SubmissionHarness) -> None:
    build(harness.config())
    theirs = Celery("theirs", broker="memory://", set_as_current=False, fixups=())
    assert theirs.conf.broker_url == theirs.conf.broker_read_url == theirs.conf.result_backend == ELSEWHERE
