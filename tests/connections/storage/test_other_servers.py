"""Servers that lack what Amazon S3 has, or want more: rclone behind a proxy that answers as they do."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import urllib3

from echo_queue.connections.storage.object_store import ObjectStore
from echo_queue.connections.store_check import WITHOUT_PUT_ONCE, examine
from tests.http_server import Answer, Asked, Reply, serving
from tests.servers.s3 import BUCKET, Server

Refusal = Callable[[Asked], Reply | None]
SMALL = 1000


def error(status: int, code: str, message: str = "no") -> Reply:
    body = f"<Error><Code>{code}</Code><Message>{message}</Message></Error>"
    return Reply(status, body.encode(), {"Content-Type": "application/xml"})


def before(url: str, refused: Refusal) -> Answer:
    """Answers what `refused` answers, and anything else as the server at `url` does."""
    http = urllib3.PoolManager(retries=False)

    def answer(asked: Asked) -> Reply:
        if reply := refused(asked):
            return reply
        where = f"{url}{asked.path}?{asked.raw_query}"
        found = http.request(asked.method, where, body=asked.body, headers=asked.headers, decode_content=False)
        kept = {name: value for name, value in found.headers.items() if name.lower() in ("etag", "content-type")}
        return Reply(found.status, found.data, kept)

    return answer


@pytest.mark.parametrize(("status", "code"), [(501, "NotImplemented"), (400, "InvalidArgument")])
def test_a_store_that_does_not_take_the_condition_of_a_put_does_not_put_once(
    s3_server: Server, status: int, code: str
) -> None:
    def refused(asked: Asked) -> Reply | None:
        return error(status, code) if "if-none-match" in asked.headers else None

    with serving(before(s3_server.url, refused)) as url:
        store = ObjectStore(replace(s3_server.endpoint(BUCKET), url=url), "conditions")
        assert examine(store, SMALL).warnings == (WITHOUT_PUT_ONCE,)
        assert store.put("one", b"first", once=True) and not store.put("one", b"second", once=True)
        store.delete(["one"])


def wants_md5(asked: Asked) -> Reply | None:
    deletes = asked.method == "POST" and "delete" in asked.raw_query
    return error(400, "MissingContentMD5") if deletes and "content-md5" not in asked.headers else None


def in_other_words(asked: Asked) -> Reply | None:
    refusal = wants_md5(asked)
    return refusal and error(400, "InvalidRequest", "Missing required header for this request: Content-MD5")


def deletes_one_by_one(asked: Asked) -> Reply | None:
    return error(501, "NotImplemented") if asked.method == "POST" and "delete" in asked.raw_query else None


@pytest.mark.parametrize("refused", [wants_md5, in_other_words, deletes_one_by_one])
def test_a_store_that_wants_a_digest_or_deletes_one_by_one_is_served(s3_server: Server, refused: Refusal) -> None:
    with serving(before(s3_server.url, refused)) as url:
        store = ObjectStore(replace(s3_server.endpoint(BUCKET), url=url), "deletions")
        for _ in range(2):
            for key in ("one", "two"):
                store.put(key, b"")
            store.delete(["one", "two", "none"])
            assert list(store.list()) == []
