"""How a move reaches the server: one jittered retry loop with a deadline around idempotent functions.

- `Caller` is the connection of one role to one run; all clients of that role may share it. `Client` is what they share.

- With `Replicas`, a move counts only once that many replicas hold it: a server that fails over to one of them has it.
- Only failures that a later try may cure are retried: a lost connection, a server that is loading, failing over,
  full or not writable for now. Every move may be sent again after a lost reply; that is what makes this safe.
- Everything else is one clear error: `FencedError` for a learner that was taken over, `SetBackError` for one whose
  moves the server has forgotten, `ServiceError` otherwise.
"""

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Self

import redis
from redis.exceptions import (
    ClusterDownError,
    MasterDownError,
    NoPermissionError,
    NoScriptError,
    TryAgainError,
)

from echo_queue import failpoints
from echo_queue.errors import FencedError, Problem, ServiceError, SetBackError
from echo_queue.queue import library
from echo_queue.queue.keys import Keys

if TYPE_CHECKING:
    from echo_queue.config import Config
    from echo_queue.connections.secrets import Role

DEADLINE_S = 60.0
FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 2.0


@dataclass(frozen=True)
class Replicas:
    """How many replicas must hold a move before it counts, and how long each try waits for them."""

    count: int = 0
    wait_ms: int = 1000


NO_REPLICAS = Replicas()


class TooFewReplicas(redis.RedisError):
    """The move was made, but too few replicas hold it yet."""


PASSING = (
    TooFewReplicas,
    redis.ConnectionError,  # also while it loads its data
    redis.TimeoutError,
    redis.ReadOnlyError,
    redis.OutOfMemoryError,
    ClusterDownError,
    MasterDownError,
    NoScriptError,
    TryAgainError,
)
PASSING_CODES = ("NOGROUP", "UNBLOCKED", "BUSY", "NOREPLICAS", "MISCONF")
REFUSED_INSIDE = ("ACL failure in script", "The user executing the script can't")
"""How Valkey and Redis 7.0 say that a function did what its caller may not."""

FIXES = {
    "MISCONF": "Redis cannot write to its disk: free space there",
    "EQNORUN": "start `echo-queue services` or the learner first: they write the run's rules",
    "EQREFUSED": "this worker is broken, or of another release",
    "EQSET": "submit it under another name, or as it was declared",
}
REFUSED = "this role's user may not do that; docs/operations.md lists the rights of each"
PASSWORD = "check the user's name and its password"
FULL = "Redis is at maxmemory: raise it, or lower staleness.s or learner.batch_groups; the learner still drains it"
AWAY = "is it running and reachable from here?"
MISSING = "Function not found"
INSTALL = "run `echo-queue services`, which loads them"
BEHIND = "look at its replicas (`redis-cli info replication`), or lower redis.wait_replicas"


class Caller:
    """Sends commands of run `run`. `deadline_s` bounds how long a passing failure is waited out."""

    def __init__(
        self,
        client: "redis.Redis",
        run: str,
        deadline_s: float = DEADLINE_S,
        replicas: Replicas = NO_REPLICAS,
    ) -> None:
        self.client = client
        self.run = run
        self.keys = Keys(run)
        self.where = f"queue of run {run}"
        self.deadline_s = deadline_s
        self.replicas = replicas

    @classmethod
    def connect(cls, config: "Config", role: "Role", deadline_s: float = DEADLINE_S) -> Self:
        """A tested connection to the configured run, as the user of `role`."""
        from echo_queue.connections.connect import connect_redis

        replicas = Replicas(config.redis.wait_replicas, config.redis.wait_ms)
        return cls(connect_redis(config, role), config.run.name, deadline_s, replicas)

    def within(self, deadline_s: float) -> "Caller":
        """The same connection with another deadline."""
        return Caller(self.client, self.run, deadline_s, self.replicas)

    def call(self, move: str, *args: Any) -> Any:
        """The answer of one function."""
        return self.move(move, [(move, *args)], args)[0]

    def ask(self, question: str) -> Any:
        """The answer of a function that only reads, as a monitor may call it."""
        return self.persist(question, lambda: self.client.fcall_ro(f"eq1_{question}", 1, self.keys.prefix))

    def move(
        self, step: str, calls: Sequence[Sequence[Any]], about: object = None, *, optional: bool = False
    ) -> list[Any]:
        """The answers of these functions, in one round trip. Each call: a name and its arguments.

        `optional`: a full server is not waited for; its `redis.OutOfMemoryError` is the answer then.
        """
        prefix = self.keys.prefix

        def send() -> list[Any]:
            pipe = self.client.pipeline(transaction=False)
            for name, *args in calls:
                pipe.fcall(f"eq1_{name}", 1, prefix, *args)
            if self.replicas.count:
                # Valkey's WAIT heeds only what this very connection has written, and a move that was made already
                # writes nothing: with a write of its own it waits for everything before.
                pipe.fcall("eq1_confirm", 1, prefix)
                pipe.wait(self.replicas.count, self.replicas.wait_ms)
            replies = pipe.execute(raise_on_error=False)
            return self._confirmed(answers(replies, spared=(redis.OutOfMemoryError,) if optional else ()))

        return list(self.persist(step, send, about))

    def _confirmed(self, replies: list[Any]) -> list[Any]:
        """What the calls answered, if enough replicas hold it."""
        if not self.replicas.count:
            return replies
        *answered, _, held = replies
        if held < self.replicas.count:
            raise TooFewReplicas(f"{held} of {self.replicas.count} replicas hold it")
        return answered

    def persist(self, step: str, send: Callable[[], Any], about: object = None) -> Any:
        """The answer of `send`, which may run several times. Raises as this module's docstring says.

        `step` and `about` name it at the failpoint (`echo_queue.failpoints`).
        """
        return failpoints.step(step, lambda: self._repeat(send), about)

    def _repeat(self, send: Callable[[], Any]) -> Any:
        give_up = time.monotonic() + self.deadline_s
        pause_s = FIRST_PAUSE_S
        while True:
            try:
                return self._try(send)
            except redis.RedisError as error:
                left_s = give_up - time.monotonic()
                if not _passing(error) or left_s <= 0:
                    self._explain(error)
            time.sleep(min(left_s, pause_s * random.uniform(0.5, 1.0)))
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    def _try(self, send: Callable[[], Any]) -> Any:
        try:
            return send()
        except redis.ResponseError as error:
            if MISSING not in str(error):
                raise
        self._install()
        return send()

    def _install(self) -> None:
        try:
            library.load(self.client)
        except redis.ResponseError as error:
            if _passing(error):
                raise
            what = f"the queue's functions are missing ({error})"
            raise ServiceError(Problem(self.where, what, INSTALL)) from None

    def _explain(self, error: redis.RedisError) -> NoReturn:
        text = str(error).partition(" script: ")[0]
        code, _, rest = text.partition(" ")
        if code == "EQFENCED":
            raise FencedError(Problem(self.where, rest, "stop this learner: another one has the run")) from None
        if code == "EQAHEAD":
            what = f"Redis has forgotten what it had acknowledged: {rest}"
            raise SetBackError(Problem(self.where, what, "start the learner again: it goes on from its checkpoint"))
        fix = FIXES.get(code) or _fix(error)
        if fix is None:
            raise error
        what = f"no answer within {self.deadline_s:.0f} s: {text}" if _passing(error) else text
        raise ServiceError(Problem(self.where, what, fix)) from None


class Client:
    """One role's view of a run. `ROLE`: the Redis user that may do all that the class has methods for (`acl.py`)."""

    ROLE: ClassVar["Role"]

    def __init__(self, caller: Caller) -> None:
        self._caller = caller

    @property
    def run(self) -> str:
        """The run's name."""
        return self._caller.run


def _passing(error: redis.RedisError) -> bool:
    if isinstance(error, redis.AuthenticationError):  # a kind of ConnectionError, but one that stays
        return False
    return isinstance(error, PASSING) or str(error).startswith(PASSING_CODES)


def _fix(error: redis.RedisError) -> str | None:
    if isinstance(error, NoPermissionError) or str(error).startswith(REFUSED_INSIDE):
        return REFUSED
    if isinstance(error, redis.AuthenticationError):
        return PASSWORD
    if isinstance(error, redis.OutOfMemoryError):
        return FULL
    if isinstance(error, TooFewReplicas):
        return BEHIND
    if MISSING in str(error):
        return INSTALL
    return AWAY if _passing(error) else None


def answers(replies: list[Any], spared: tuple[type[Exception], ...] = ()) -> list[Any]:
    """The replies of a pipeline, raising the first that is an error, unless it is `spared`."""
    for reply in replies:
        if isinstance(reply, Exception) and not isinstance(reply, spared):
            raise reply
    return replies
