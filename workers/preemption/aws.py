"""EC2: the instance metadata service, version 2 (a session token that expires; 404 while there is nothing to tell).

https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html
"""

from datetime import datetime
from typing import ClassVar

from workers.preemption.metadata import Answer, Metadata
from workers.preemption.watcher import Away, Notice, Warned, seconds_until

TOKEN_S = 21_600
NOTICE_S = 120.0
"""An interruption is told at most so long before."""


class Aws:
    ENDPOINT: ClassVar = "http://169.254.169.254"

    def __init__(self, endpoint: str) -> None:
        self._server = Metadata(endpoint)
        self._token = ""

    def look(self) -> Notice | Warned | None:
        action = self._get("/latest/meta-data/spot/instance-action")
        if action.status == 200:
            return interruption(action.json())
        rebalance = self._get("/latest/meta-data/events/recommendations/rebalance")
        return Warned("EC2 recommends to rebalance") if rebalance.status == 200 else None

    def _get(self, path: str) -> Answer:
        """With the token there is, or with a new one if that has expired."""
        answer = self._try(path) if self._token else None
        if answer is None or answer.status == 401:
            self._token = self._new_token()
            answer = self._try(path)
        if answer.status == 401:
            raise Away(f"{path}: the token that was just given is refused")
        return answer

    def _try(self, path: str) -> Answer:
        try:
            return self._server.ask(path, {"X-aws-ec2-metadata-token": self._token}, expect=(200, 401, 404))
        except Away:
            self._token = ""  # it may be the token that it chokes on
            raise

    def _new_token(self) -> str:
        lifetime = {"X-aws-ec2-metadata-token-ttl-seconds": str(TOKEN_S)}
        token = self._server.ask("/latest/api/token", lifetime, method="PUT").body
        if not token.isascii() or not token.decode("ascii").isprintable():
            raise Away(f"{token[:80]!r} is no token")
        return token.decode("ascii")


def interruption(action: object) -> Notice:
    """Of an instance action, `{"action": "terminate", "time": "2017-09-18T08:22:00Z"}`. Raises `Away`."""
    match action:
        case {"action": str(what), "time": str(moment)}:
            try:
                within_s = seconds_until(datetime.fromisoformat(moment), NOTICE_S)
            except ValueError as error:
                raise Away(f"{moment!r} is no time") from error
            return Notice(f"EC2 will {what} this instance at {moment}", within_s)
    raise Away(f"{action!r} is no instance action")
