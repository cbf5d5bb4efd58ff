"""How a move reaches the server: one jittered retry loop with a deadline around idempotent functions.

- Only failures that a later try may cure are retried: a lost connection, a server that is loading, failing over
  or not writable for now. Every move may be sent again after a lost reply; that is what makes this safe.
- Everything else is one clear error: `FencedError` for a learner that was taken over, `ServiceError` otherwise.
"""

import random
import time
from collections.abc import Callable
from typing import Any, NoReturn

import redis
from redis.exceptions import ClusterDownError, NoPermissionError

from echo_queue.errors import FencedError, Problem, ServiceError
from echo_queue.queue import library

FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 2.0
PASSING = (
    "LOADING", "READONLY", "MASTERDOWN", "NOGROUP", "TRYAGAIN", "CLUSTERDOWN",
    "UNBLOCKED", "BUSY", "NOREPLICAS", "MISCONF",
)  # fmt: skip
REFUSED_INSIDE = ("ACL failure in script", "The user executing the script can't")
"""How Valkey and Redis 7.0 say that a function did what its caller may not."""
MENDS = {
    "NOPERM": "this role's user may not do that; docs/operations.md lists the rights of each",
    "WRONGPASS": "check the user's password",
    "NOAUTH": "the server wants a password; see docs/operations.md",
    "OOM": "Redis is at maxmemory: raise it, or lower staleness.s or learner.batch_groups; the learner can still drain",
    "MISCONF": "Redis cannot write to its disk: free space there",
    "EQNORUN": "start `echo-queue services` or the learner first: they write the run's rules",
    "EQAHEAD": "Redis has forgotten the newest lineage: restart the learner, which resumes from its checkpoint",
    "EQSET": "submit it under another name, or as it was declared",
}


class Caller:
    """Sends commands of one run. `deadline_s` bounds how long a passing failure is waited out."""

    def __init__(self, client: "redis.Redis", where: str, deadline_s: float) -> None:
        self.client = client
        self.where = where
        self.deadline_s = deadline_s

    def persist(self, send: Callable[[], Any], deadline_s: float | None = None) -> Any:
        """The answer of `send`, which may run several times. Raises as this module's docstring says."""
        patience_s = self.deadline_s if deadline_s is None else deadline_s
        give_up = time.monotonic() + patience_s
        pause_s, installed = FIRST_PAUSE_S, False
        while True:
            try:
                return send()
            except redis.RedisError as error:
                if "Function not found" in str(error) and not installed:
                    self._install()
                    installed = True
                    continue
                left_s = give_up - time.monotonic()
                if not _passing(error) or left_s <= 0:
                    self._explain(error, patience_s)
            time.sleep(min(left_s, pause_s * random.uniform(0.5, 1.0)))
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    def _install(self) -> None:
        try:
            library.load(self.client)
        except redis.ResponseError as error:
            what = f"the queue's functions are missing ({error})"
            raise ServiceError(Problem(self.where, what, "run `echo-queue services`, which loads them")) from None

    def _explain(self, error: redis.RedisError, patience_s: float) -> NoReturn:
        code, _, text = str(error).partition(" script: ")[0].partition(" ")
        if code == "EQFENCED":
            raise FencedError(Problem(self.where, text, "stop this learner: another one has the run")) from None
        if code in MENDS:
            raise ServiceError(Problem(self.where, f"{code} {text}", MENDS[code])) from None
        if isinstance(error, redis.AuthenticationError):
            raise ServiceError(Problem(self.where, str(error), MENDS["WRONGPASS"])) from None
        if isinstance(error, NoPermissionError) or str(error).startswith(REFUSED_INSIDE):
            raise ServiceError(Problem(self.where, str(error), MENDS["NOPERM"])) from None
        if _passing(error):
            what = f"no answer within {patience_s:.0f} s: {error}"
            raise ServiceError(Problem(self.where, what, "is it running and reachable from here?")) from None
        raise error


def _passing(error: redis.RedisError) -> bool:
    if isinstance(error, redis.AuthenticationError | NoPermissionError | redis.OutOfMemoryError):
        return False
    if isinstance(error, redis.ConnectionError | redis.TimeoutError | redis.ReadOnlyError | ClusterDownError):
        return True
    return str(error).startswith(PASSING)


def answers(replies: list[Any]) -> list[Any]:
    """The replies of a pipeline, raising the first that is an error."""
    for reply in replies:
        if isinstance(reply, Exception):
            raise reply
    return replies
