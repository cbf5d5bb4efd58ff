"""An HTTP client for clouds' metadata servers: one host, no proxy, no redirect, short answers, all of them text."""

from collections.abc import Mapping
from typing import NamedTuple

import orjson
import urllib3
from urllib3.exceptions import HTTPError

from workers.preemption.notice_source import NoticeSourceAway

ANSWER_S = 5.0
"""Longest silence of a server that is not asked to delay its answer."""
LARGEST_BYTES = 1 << 20


class MetadataAnswer(NamedTuple):
    """A metadata server's HTTP response."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> object:
        """Parses the body. Raises `NoticeSourceAway` if it is not JSON."""
        try:
            return orjson.loads(self.body)
        except orjson.JSONDecodeError as error:
            raise NoticeSourceAway(f"{self.body[:80]!r} is not JSON") from error


class MetadataServer:
    """The metadata server at `endpoint`, a URL without a path."""

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint.rstrip("/")
        self._http = urllib3.PoolManager(retries=False)

    def ask(
        self,
        path: str,
        headers: Mapping[str, str],
        *,
        method: str = "GET",
        body: bytes | None = None,
        wait_s: float = 0.0,
        expect: tuple[int, ...] = (200,),
    ) -> MetadataAnswer:
        """Asks for `path`; the server may delay its answer by `wait_s`.

        Raises `NoticeSourceAway` if there is no answer, or one with a status that is not in `expect`.
        """
        url = f"{self._endpoint}{path}"
        timeout = urllib3.Timeout(connect=ANSWER_S, read=ANSWER_S + wait_s)
        try:
            response = self._http.request(
                method, url, headers=headers, body=body, timeout=timeout, redirect=False, preload_content=False
            )
            with response:
                answer = MetadataAnswer(response.status, response.headers, response.read(LARGEST_BYTES))
        except HTTPError as error:
            raise NoticeSourceAway(f"{method} {url}: {error}") from error
        if answer.status not in expect:
            raise NoticeSourceAway(f"{method} {url}: status {answer.status}, {answer.body[:80]!r}")
        return answer
