"""Metadata servers on loopback that speak as the clouds' own do: what a client leaves out, they refuse."""

import secrets
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import formatdate
from typing import Any, TypeVar

import orjson

from tests.http_server import Asked, HttpServer, Reply

DEADLINE_S = 120.0
Server = TypeVar("Server", bound="MetadataServer")


class MetadataServer(ABC):
    """Answers with `reply`, or with `broken` while that is set. `asked`: all requests so far."""

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        self.broken: Reply | None = None
        self.changed = threading.Condition()
        server = HttpServer(self.answer)
        self.url, self.close = server.url, server.close

    @abstractmethod
    def reply(self, asked: Asked) -> Reply:
        """Returns the reply to one request."""

    def answer(self, asked: Asked) -> Reply:
        with self.changed:
            self.asked.append(asked)
            self.changed.notify_all()
        return self.broken or self.reply(asked)

    def until_asked(self, times: int, path: str = "/") -> None:
        """Waits until that many requests came, since the start, for paths that begin with `path`."""

        def enough() -> bool:
            return sum(asked.path.startswith(path) for asked in self.asked) >= times

        with self.changed:
            assert self.changed.wait_for(enough, DEADLINE_S), f"{path} was not asked for {times} times"


class Ec2(MetadataServer):
    """EC2's IMDSv2. A token serves `uses` questions, in place of the hours that it lives."""

    def __init__(self, uses: int = 1_000_000) -> None:
        super().__init__()
        self._uses = uses
        self.action: bytes | None = None
        self.rebalance: bytes | None = None
        self.credentials = orjson.dumps(
            {"AccessKeyId": "key", "SecretAccessKey": "secret", "Token": "token", "Expiration": "2100-01-01T00:00:00Z"}
        )
        self._tokens: dict[str, int] = {}

    def interrupts(self, action: str, in_s: float) -> None:
        moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + in_s))
        self.action = orjson.dumps({"action": action, "time": moment})

    def reply(self, asked: Asked) -> Reply:
        if asked.path == "/latest/api/token":
            return self._give_token(asked)
        token = asked.headers.get("x-aws-ec2-metadata-token", "")
        if not self._tokens.get(token):
            return Reply(401)
        self._tokens[token] -= 1
        match asked.path:
            case "/latest/meta-data/spot/instance-action":
                found = self.action
            case "/latest/meta-data/events/recommendations/rebalance":
                found = self.rebalance
            case "/latest/meta-data/iam/security-credentials/":
                found = b"worker-role"
            case "/latest/meta-data/iam/security-credentials/worker-role":
                found = self.credentials
            case _:
                found = None
        return Reply(404) if found is None else Reply(200, found)

    def _give_token(self, asked: Asked) -> Reply:
        lifetime = asked.headers.get("x-aws-ec2-metadata-token-ttl-seconds", "")
        if asked.method != "PUT":
            return Reply(405)
        if not lifetime.isdecimal() or not 1 <= int(lifetime) <= 21_600:
            return Reply(400)
        if "x-forwarded-for" in asked.headers:
            return Reply(403)
        token = secrets.token_urlsafe(42)
        self._tokens[token] = self._uses
        return Reply(200, token.encode())


class ComputeEngine(MetadataServer):
    """Compute Engine's server. It answers a request that waits for a change after `longest_s` at the latest."""

    def __init__(self, longest_s: float = 3600.0) -> None:
        super().__init__()
        self._longest_s = longest_s
        self._preempted = b"FALSE"

    def preempts(self) -> None:
        with self.changed:
            self._preempted = b"TRUE"
            self.changed.notify_all()

    def reply(self, asked: Asked) -> Reply:
        if asked.headers.get("metadata-flavor") != "Google":
            return Reply(403, b"Missing Metadata-Flavor:Google header.")
        if asked.path != "/computeMetadata/v1/instance/preempted":
            return Reply(404)
        with self.changed:
            if asked.query.get("wait_for_change") == "true":
                at_most = min(float(asked.query["timeout_sec"]), self._longest_s)
                self.changed.wait_for(lambda: self._etag() != asked.query.get("last_etag"), at_most)
            return Reply(200, self._preempted, {"Metadata-Flavor": "Google", "ETag": self._etag()})

    def _etag(self) -> str:
        return f"etag-{self._preempted.decode()}"


class AzureInstance(MetadataServer):
    """Azure's server, for a machine named `name`; `events` are those of its whole set."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.events: list[dict[str, Any]] = []
        self.started: list[str] = []

    def announce(self, kind: str, machine: str, in_s: float | None) -> str:
        """Adds an event that begins in `in_s` seconds (None: it has begun); returns its id."""
        event = secrets.token_hex(8)
        self.events.append(
            {
                "EventId": event,
                "EventType": kind,
                "ResourceType": "VirtualMachine",
                "Resources": [machine],
                "EventStatus": "Started" if in_s is None else "Scheduled",
                "NotBefore": "" if in_s is None else formatdate(time.time() + in_s, usegmt=True),
                "Description": "",
                "EventSource": "Platform",
                "DurationInSeconds": -1,
            }
        )
        return event

    def reply(self, asked: Asked) -> Reply:
        if asked.headers.get("metadata") != "true" or "api-version" not in asked.query:
            return Reply(400, b'{"error": "Bad request"}')
        match asked.method, asked.path:
            case "GET", "/metadata/instance/compute/name" if asked.query.get("format") == "text":
                return Reply(200, self.name.encode())
            case "GET", "/metadata/scheduledevents":
                return Reply(200, orjson.dumps({"DocumentIncarnation": len(self.events), "Events": self.events}))
            case "POST", "/metadata/scheduledevents":
                return self._start([request["EventId"] for request in orjson.loads(asked.body)["StartRequests"]])
        return Reply(404)

    def _start(self, events: list[str]) -> Reply:
        if not set(events) <= {event["EventId"] for event in self.events}:
            return Reply(400, b"no such event")
        self.started += events
        return Reply(200)


@contextmanager
def serving(server: Server) -> Iterator[Server]:
    try:
        yield server
    finally:
        server.close()
