"""EC2: the instance metadata service, version 2, with a session token that expires. Without a notice it answers 404.

https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html
"""

from datetime import datetime
from typing import ClassVar

from workers.preemption.metadata import MetadataAnswer, MetadataServer
from workers.preemption.notice_source import Notice, NoticeSourceAway, Recommendation, seconds_until

TOKEN_S = 21_600
NOTICE_S = 120.0
"""EC2 announces an interruption at most so long in advance."""


class Aws:
    ENDPOINT: ClassVar = "http://169.254.169.254"

    def __init__(self, endpoint: str) -> None:
        self._server = MetadataServer(endpoint)
        self._token = ""

    def poll(self) -> Notice | Recommendation | None:
        action = self._get("/latest/meta-data/spot/instance-action")
        if action.status == 200:
            return interruption(action.json())
        rebalance = self._get("/latest/meta-data/events/recommendations/rebalance")
        return Recommendation("EC2 recommends to rebalance") if rebalance.status == 200 else None

    def _get(self, path: str) -> MetadataAnswer:
        """Asks with the present token, or with a new one if that has expired."""
        answer = self._try(path) if self._token else None
        if answer is None or answer.status == 401:
            self._token = self._new_token()
            answer = self._try(path)
        if answer.status == 401:
            raise NoticeSourceAway(f"{path}: the server refuses the token that it has just issued")
        return answer

    def _try(self, path: str) -> MetadataAnswer:
        try:
            return self._server.ask(path, {"X-aws-ec2-metadata-token": self._token}, expect=(200, 401, 404))
        except NoticeSourceAway:
            self._token = ""  # the token may be what makes the server fail
            raise

    def _new_token(self) -> str:
        lifetime = {"X-aws-ec2-metadata-token-ttl-seconds": str(TOKEN_S)}
        token = self._server.ask("/latest/api/token", lifetime, method="PUT").body
        if not token.isascii() or not token.decode("ascii").isprintable():
            raise NoticeSourceAway(f"{token[:80]!r} is not a token")
        return token.decode("ascii")


def interruption(action: object) -> Notice:
    """Parses an instance action, `{"action": "terminate", "time": "2017-09-18T08:22:00Z"}`.

    Raises `NoticeSourceAway` for anything else.
    """
    match action:
        case {"action": str(what), "time": str(moment)}:
            try:
                within_s = seconds_until(datetime.fromisoformat(moment), NOTICE_S)
            except ValueError as error:
                raise NoticeSourceAway(f"{moment!r} is not a time") from error
            return Notice(f"EC2 will {what} this instance at {moment}", within_s)
    raise NoticeSourceAway(f"{action!r} is not an instance action")
