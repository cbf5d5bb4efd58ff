"""Greetings and tokens between peers: a server proves that it is a peer, then a reader that it may have a path.

- A server greets whoever connects, before anything is sent to it: other services do not get one byte of a reader that
  was sent to their address.
- The reader mints a token for each request from the secret that all workers of a run share; no third party is asked.
- A token is bound to one reader, one server and one path, and lives for about a minute of Redis' clock, so that workers
  whose own clocks differ accept each other's. A token that is intercepted allows nothing but that path, and only until
  it expires.
"""

import hmac
import time
from collections.abc import Callable

from echo_queue.records.foreign_numbers import NoNumber, whole

LIFE_S = 60
SKEW_S = 30
"""The largest difference between two workers' clocks after both were set by Redis' own."""
DOMAIN = "echo-queue peer 1"
GREETING_DOMAIN = "echo-queue peer server 1"
GREETING_END = b"\r\n\r\n"
TOKEN_MAX_BYTES = 400


class Refused(Exception):
    """The token or greeting is missing, forged, expired, or meant for something else."""


class PeerAuth:
    """Makes and checks greetings and tokens with `secret`. `clock`: this machine's seconds since 1970."""

    def __init__(self, secret: bytes, clock: Callable[[], float] = time.time) -> None:
        if not secret:
            raise ValueError("an empty secret would let every reader in")
        self._secret = secret
        self._clock = clock
        self._ahead_s = 0.0

    def tune(self, now_s: float) -> None:
        """Sets the clock by Redis' own, which all workers can read."""
        self._ahead_s = self._clock() - now_s

    def greeting(self, server: str) -> bytes:
        """Returns what the worker `server` says first on every connection to it."""
        expires = str(self._expires())
        return f"EQ1 {expires} {self._mark(GREETING_DOMAIN, server, expires)}".encode() + GREETING_END

    def check_greeting(self, greeting: bytes, server: str) -> None:
        """Checks a greeting, without its end. Raises `Refused` unless the worker `server` made it."""
        words = greeting.decode("ascii", "replace").split(" ")
        if len(greeting) > TOKEN_MAX_BYTES or len(words) != 3 or words[0] != "EQ1":
            raise Refused("no greeting")
        _, expires, mark = words
        self._check(mark, self._mark(GREETING_DOMAIN, server, expires), expires)

    def mint(self, worker: str, upstream: str, path: str) -> str:
        """Returns a token with which `worker` may fetch `path` from `upstream`."""
        expires = self._expires()
        return f"EQ1 {worker} {expires} {self._mark(DOMAIN, worker, upstream, path, str(expires))}"

    def check(self, token: str, upstream: str, path: str) -> str:
        """Returns the worker to which `upstream` may give `path`. Raises `Refused`."""
        words = token.split(" ")
        if len(token) > TOKEN_MAX_BYTES or len(words) != 4 or words[0] != "EQ1":
            raise Refused("no token")
        _, worker, expires, mark = words
        self._check(mark, self._mark(DOMAIN, worker, upstream, path, expires), expires)
        return worker

    def _expires(self) -> int:
        return round(self._clock() - self._ahead_s) + LIFE_S

    def _check(self, mark: str, expected: str, expires: str) -> None:
        if not hmac.compare_digest(mark.encode(), expected.encode()):
            raise Refused("not made with this secret, or for something else")
        now_s = self._clock() - self._ahead_s
        try:
            ends_s = whole(expires)
        except NoNumber as error:
            raise Refused(f"expires at no time: {error}") from None
        if not now_s - SKEW_S <= ends_s <= now_s + LIFE_S + SKEW_S:
            raise Refused("expired")

    def _mark(self, *words: str) -> str:
        return hmac.digest(self._secret, "\n".join(words).encode(), "sha256").hex()
