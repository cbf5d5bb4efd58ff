"""A store that does not do what the run needs is refused before anything is trained, with the way out."""

import logging
from collections.abc import Callable, Iterator
from typing import ClassVar

import pytest

from echo_queue.config import Config
from echo_queue.connections import store_check, verdict
from echo_queue.connections.storage.endpoint import StoreEndpoint
from echo_queue.connections.storage.object_store import ObjectStore
from echo_queue.connections.store_check import WITHOUT_PUT_ONCE, check, examine
from echo_queue.errors import ServiceError
from echo_queue.launch.servers.inspection import inspect
from tests.http_server import Asked, Reply, serving
from tests.servers.s3 import BUCKET, Server

Configure = Callable[..., Config]
SMALL = 1_000


def test_a_store_that_keeps_what_it_acknowledges_is_taken_and_left_empty(
    object_store: ObjectStore, honours_put_once: bool
) -> None:
    found = examine(object_store, SMALL)
    assert found.refusals == ()
    assert found.warnings == (() if honours_put_once else (WITHOUT_PUT_ONCE,))
    assert list(object_store.list()) == []


def test_without_put_once_it_is_said_once(
    object_store: ObjectStore, honours_put_once: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(verdict, "_said", set())
    object_store.put("begun", b"")
    with caplog.at_level(logging.WARNING):
        check(object_store)
        check(object_store)
    assert len(caplog.records) == (0 if honours_put_once else 1)


def test_config_check_looks_at_a_store_of_ones_own(
    configure: Configure, s3_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoint = s3_server.endpoint(BUCKET)
    monkeypatch.setenv("ECHO_QUEUE_STORE_ACCESS_KEY", endpoint.access_key or "")
    monkeypatch.setenv("ECHO_QUEUE_STORE_SECRET_KEY", endpoint.secret_key or "")
    monkeypatch.setattr(store_check, "LARGEST_BYTES", SMALL)
    found = inspect(configure(store={"url": s3_server.url, "bucket": BUCKET}))
    assert found.refusals == ()


class Forgetful:
    """A store that answers every request with the status that the test chose, and keeps nothing."""

    statuses: ClassVar[dict[str, int]] = {}

    def answer(self, asked: Asked) -> Reply:
        return Reply(self.statuses.get(asked.method, 200), self._body(asked))

    def _body(self, asked: Asked) -> bytes:
        if asked.method == "GET" and "list-type" in asked.query:
            return b"<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>"
        return b"<DeleteResult/>" if asked.method == "POST" else b""


@pytest.fixture
def forgetful(monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectStore]:
    monkeypatch.setattr(Forgetful, "statuses", {"HEAD": 404})
    with serving(Forgetful().answer) as url:
        yield ObjectStore(StoreEndpoint(url, "bucket", access_key="a", secret_key="b", put_once=True), "run", 0.1)


def test_a_store_that_does_not_show_what_it_acknowledged_is_refused(forgetful: ObjectStore) -> None:
    told = [problem.what for problem in examine(forgetful, SMALL).refusals]
    assert [what.partition(" ")[0] for what in told] == ["an", "an", "an"], told
    with pytest.raises(ServiceError, match="not listed right after"):
        check(forgetful)


def test_a_store_that_takes_no_object_of_the_size_is_refused(
    forgetful: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(Forgetful.statuses, "PUT", 413)
    (problem,) = examine(forgetful, SMALL).refusals
    assert "too large for one request" in problem.what and "64 MiB" in problem.fix


def test_keys_that_may_not_write_there_are_no_verdict_on_the_store(
    forgetful: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(Forgetful.statuses, "PUT", 403)
    found = examine(forgetful, SMALL)
    assert found.refusals == () and "could not be tried" in found.warnings[0].what
