"""Sends moves to the server: one jittered retry loop with a deadline around idempotent functions.

- `Caller` is the connection of one role to one run; all clients of that role may share it. `Client` is the base class
  of these clients.
- With `Replicas`, a move counts only once that many replicas hold it. A fail-over to one of them then keeps the move.
- Only failures that a later try may cure are retried: a lost connection, and a server that is loading, failing over,
  full or not writable for now. This is safe because every move may be sent again after a lost reply.
- Every other failure is one clear error: `FencedError` for a learner that was taken over, `SetBackError` for a learner
  whose moves the server has forgotten, `PromptError` for a set that is not the one of its name, and `ServiceError`
  otherwise. No error of Redis's own leaves this module.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Self, TypeVar

import redis
from redis.exceptions import (
    ClusterDownError,
    MasterDownError,
    NoPermissionError,
    NoScriptError,
    TryAgainError,
)

from echo_queue import failpoints
from echo_queue.connections.retries import repeat
from echo_queue.connections.storage.errors import Unreachable
from echo_queue.connections.storage.outage_log import outage_log
from echo_queue.errors import FencedError, Problem, PromptError, ServiceError, SetBackError
from echo_queue.queue import library
from echo_queue.queue.keys import Keys

if TYPE_CHECKING:
    from echo_queue.config import Config
    from echo_queue.connections.secrets import Role

DEADLINE_S = 60.0


@dataclass(frozen=True)
class Replicas:
    """The number of replicas that must hold a move before it counts, and how long each try waits for them."""

    count: int = 0
    wait_ms: int = 1000


NO_REPLICAS = Replicas()


class TooFewReplicas(redis.RedisError):
    """The move was made, but too few replicas hold it yet."""


PASSING = (
    TooFewReplicas,
    redis.ConnectionError,  # also raised while the server loads its data
    redis.TimeoutError,
    redis.ReadOnlyError,
    redis.OutOfMemoryError,
    ClusterDownError,
    MasterDownError,
    NoScriptError,
    TryAgainError,
)
PASSING_CODES = ("EQMEND", "NOGROUP", "UNBLOCKED", "BUSY", "NOREPLICAS", "MISCONF")
REFUSED_INSIDE = ("ACL failure in script", "The user executing the script can't")
"""The errors of Valkey and of Redis 7.0 for a function that did something its caller has no right to."""

T = TypeVar("T")
FIXES = {
    "MISCONF": "Redis cannot write to its disk: free space there",
    "EQNORUN": "start `echo-queue services` or the learner first, or run `echo-queue prepare` for servers of your own: "
    "they write the run rules",
    "EQREFUSED": "this worker is broken, or of another release; restart it with the release of the services",
    "EQSET": "submit other prompts under another name (prompts.set), or this set exactly as it was declared, in chunks "
    "of the same size (prompts.chunk)",
    "EQCOMPONENT": "name the set like its component, or component.something (`echo-queue submit FILE --set NAME`)",
    "EQMIXTURE": "a component that has prompts stays in the mixture: name it there again, with any weight",
    "EQNAME": "delete this run's keys in Redis, since the checkpoints know what is trained, and submit its sets again, "
    "these prompts under another name (prompts.set); or give the run another name (run.name)",
}
PROMPT_ERRORS = ("EQSET", "EQCOMPONENT", "EQMIXTURE", "EQNAME")
REFUSED = "this role's Redis user may not do that; docs/rights.md lists the rights of each"
PASSWORD = "check the user's name and its password; an invited worker's user is gone once it is revoked"
FULL = "Redis is at maxmemory: raise it, or lower staleness.s, learner.batch_groups or learner.checkpoint_updates"
AWAY = "is it running and reachable from here?"
MISSING = "Function not found"
INSTALL = "run `echo-queue prepare`, which loads them into a server of your own; `echo-queue services` does so itself"
UNKNOWN = "see Redis's log; if only this project wrote to the run's keys, please report it with this line"
BEHIND = "check its replicas (`redis-cli info replication`), or lower redis.wait_replicas"


class Caller:
    """Sends the commands of run `run`. `deadline_s`: how long passing failures are retried before the call fails."""

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
        self._outages = outage_log(_server(client))
        self.deadline_s = deadline_s
        self.replicas = replicas

    @classmethod
    def connect(cls, config: "Config", role: "Role", deadline_s: float = DEADLINE_S) -> Self:
        """Returns a tested connection to the configured run, as the Redis user of `role`."""
        from echo_queue.connections.connect import connect_redis

        replicas = Replicas(config.redis.wait_replicas, config.redis.wait_ms)
        return cls(connect_redis(config, role), config.run.name, deadline_s, replicas)

    def within(self, deadline_s: float) -> "Caller":
        """Returns a caller on the same connection with another deadline."""
        return Caller(self.client, self.run, deadline_s, self.replicas)

    def call(self, move: str, *args: Any) -> Any:
        """Calls one function and returns its answer."""
        return self.move(move, [(move, *args)], args)[0]

    def ask(self, question: str) -> Any:
        """Calls a read-only function, as a monitor may, and returns its answer."""
        return self.persist(question, lambda: self.client.fcall_ro(f"eq1_{question}", 1, self.keys.prefix))

    def move(
        self, step: str, calls: Sequence[Sequence[Any]], about: object = None, *, optional: bool = False
    ) -> list[Any]:
        """Calls these functions in one round trip and returns their answers. Each call: a name and its arguments.

        `optional`: a full server is not retried; its `redis.OutOfMemoryError` is then the answer.
        """
        prefix = self.keys.prefix

        def send() -> list[Any]:
            pipe = self.client.pipeline(transaction=False)
            for name, *args in calls:
                pipe.fcall(f"eq1_{name}", 1, prefix, *args)
            if self.replicas.count:
                # Valkey's WAIT regards only writes of this very connection, and a move that was made already writes
                # nothing. A write of its own makes WAIT cover everything before it.
                pipe.fcall("eq1_confirm", 1, prefix)
                pipe.wait(self.replicas.count, self.replicas.wait_ms)
            replies = pipe.execute(raise_on_error=False)
            return self._confirmed(answers(replies, spared=(redis.OutOfMemoryError,) if optional else ()))

        return list(self.persist(step, send, about))

    def _confirmed(self, replies: list[Any]) -> list[Any]:
        """Returns the calls' answers; raises `TooFewReplicas` if fewer replicas than required hold the move."""
        if not self.replicas.count:
            return replies
        *answered, _, held = replies
        if held < self.replicas.count:
            raise TooFewReplicas(f"{held} of {self.replicas.count} replicas hold it")
        return answered

    def persist(self, step: str, send: Callable[[], Any], about: object = None) -> Any:
        """Runs `send`, several times if need be, and returns its answer. Raises as this module's docstring states.

        `step` and `about` name the call at the failpoint (`echo_queue.failpoints`).
        """
        return failpoints.step(step, lambda: self._repeat(send), about)

    def _repeat(self, send: Callable[[], Any]) -> Any:
        try:
            return repeat(lambda: self._try(send), self.deadline_s, self._outages)
        except Unreachable as error:
            (problem,) = error.problems
            what = f"no answer within {self.deadline_s:.0f} s: {problem.what}"
            raise ServiceError(replace(problem, what=what)) from None

    def _try(self, send: Callable[[], Any]) -> Any:
        try:
            return self._sent(send)
        except redis.RedisError as error:
            self._explain(error)

    def _sent(self, send: Callable[[], Any]) -> Any:
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
        if code == "EQDEPOSED":
            raise FencedError(Problem(self.where, rest, "leave the fleet to the one that leads")) from None
        if code in ("EQAHEAD", "EQUNHEARD"):
            what = f"Redis has forgotten what it had acknowledged: {rest}" if code == "EQAHEAD" else rest
            raise SetBackError(Problem(self.where, what, "start the learner again: it goes on from its checkpoint"))
        fix = FIXES.get(code) or _fix(error)
        if code in PROMPT_ERRORS:
            raise PromptError(Problem(self.where, rest, fix)) from None
        raise (Unreachable if _passing(error) else ServiceError)(Problem(self.where, text, fix)) from None


class Client:
    """The base class of a role's clients of one run.

    `ROLE`: a Redis user that has the rights for all methods of the class (`acl.py`).
    """

    ROLE: ClassVar["Role"]

    def __init__(self, caller: Caller) -> None:
        self._caller = caller

    @property
    def run(self) -> str:
        """The run's name."""
        return self._caller.run


def _server(client: "redis.Redis") -> str:
    """Names the server for a person; behind Sentinels its address changes."""
    address = client.connection_pool.connection_kwargs
    return f"Redis at {address['host']}:{address['port']}" if {"host", "port"} <= address.keys() else "Redis"


def _passing(error: redis.RedisError) -> bool:
    if isinstance(error, redis.AuthenticationError):  # a subclass of ConnectionError, but no later try cures it
        return False
    return isinstance(error, PASSING) or str(error).startswith(PASSING_CODES)


def _fix(error: redis.RedisError) -> str:
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
    return AWAY if _passing(error) else UNKNOWN


def answers(replies: list[Any], spared: tuple[type[Exception], ...] = ()) -> list[Any]:
    """Returns the replies of a pipeline; raises the first that is an error, unless its type is in `spared`."""
    for reply in replies:
        if isinstance(reply, Exception) and not isinstance(reply, spared):
            raise reply
    return replies


def divided(items: Iterable[T], size: Callable[[T], int], most: int) -> list[list[T]]:
    """Divides `items`, in order, into lists of together at most `most` bytes by `size`; a larger item has its own."""
    lists: list[list[T]] = []
    room = 0
    for item in items:
        if not lists or size(item) > room:
            lists.append([])
            room = most
        lists[-1].append(item)
        room -= size(item)
    return lists
