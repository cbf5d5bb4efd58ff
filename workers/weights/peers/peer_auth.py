"""Tokens between peers: each allows one worker to fetch one path from one peer until it expires.

- The reader mints a token for each request from the secret that all workers of a run share; no third party is asked.
- A token is bound to one reader, one server and one path, and lives for about a minute of Redis' clock, so that workers
  whose own clocks differ accept each other's. A token that is intercepted allows nothing but that path, and only until
  it expires.
"""

import hmac
import time
from collections.abc import Callable

LIFE_S = 60
SKEW_S = 30
"""The largest difference between two workers' clocks after both were set by Redis' own."""
DOMAIN = "echo-queue peer 1"
TOKEN_MAX_BYTES = 400


class Refused(Exception):
    """The token is missing, forged, expired, or meant for something else."""


class PeerAuth:
    """Mints and checks tokens with `secret`. `clock`: this machine's seconds since 1970."""

    def __init__(self, secret: bytes, clock: Callable[[], float] = time.time) -> None:
        if not secret:
            raise ValueError("an empty secret would let every reader in")
        self._secret = secret
        self._clock = clock
        self._ahead_s = 0.0

    def tune(self, now_s: float) -> None:
        """Sets the clock by Redis' own, which all workers can read."""
        self._ahead_s = self._clock() - now_s

    def mint(self, worker: str, upstream: str, path: str) -> str:
        """Returns a token with which `worker` may fetch `path` from `upstream`."""
        expires = round(self._clock() - self._ahead_s) + LIFE_S
        return f"EQ1 {worker} {expires} {self._mark(worker, upstream, path, str(expires))}"

    def check(self, token: str, upstream: str, path: str) -> str:
        """Returns the worker to which `upstream` may give `path`. Raises `Refused`."""
        words = token.split(" ")
        if len(token) > TOKEN_MAX_BYTES or len(words) != 4 or words[0] != "EQ1":
            raise Refused("no token")
        _, worker, expires, mark = words
        if not hmac.compare_digest(mark.encode(), self._mark(worker, upstream, path, expires).encode()):
            raise Refused("not minted here, or for something else")
        now_s = self._clock() - self._ahead_s
        if not now_s - SKEW_S <= int(expires) <= now_s + LIFE_S + SKEW_S:
            raise Refused("expired")
        return worker

    def _mark(self, *words: str) -> str:
        return hmac.digest(self._secret, "\n".join((DOMAIN, *words)).encode(), "sha256").hex()
