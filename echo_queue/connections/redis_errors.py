"""Explains failures of Redis to the person who must act: configuration key, what is wrong, the fix."""

import re
from collections.abc import Sequence

import redis
from redis import exceptions
from redis.sentinel import MasterNotFoundError

from echo_queue.connections.secrets import Role
from echo_queue.errors import Problem, ServiceError

# The first match counts: a kind of exception, or the beginning of a server's answer.
MEANINGS: tuple[tuple[type[Exception] | str, str, str], ...] = (
    (
        exceptions.AuthenticationError,
        "Redis no longer accepts the user",
        "compare the server's users with those that `echo-queue redis-users CONFIG` prints",
    ),
    (
        exceptions.NoPermissionError,
        "Redis does not allow this role to do that",
        "compare the role's rights with those in docs/rights.md",
    ),
    (redis.BusyLoadingError, "Redis is still loading its data", "wait: a long append-only file takes some time"),
    (
        "SENTINELS REFUSE",
        "the Sentinels refuse us",
        "set ECHO_QUEUE_SENTINEL_PASSWORD (or …_FILE), and ECHO_QUEUE_SENTINEL_USERNAME for a user but the default one",
    ),
    ("SENTINELS AWAY", "no Sentinel answers", "start them, or correct their addresses"),
    (MasterNotFoundError, "the Sentinels know no such master", "check the hosts and the service's name"),
    (exceptions.MovedError, "this node of a cluster does not serve the run", "name the node that owns the run's slot"),
    (exceptions.ClusterDownError, "the cluster is down", "see `redis-cli cluster info`"),
    (redis.TimeoutError, "Redis does not answer in time", "check the address, the firewall and the server's load"),
    ("TLS", "the TLS connection failed", "check redis.ca_file, the host's name, and that the server uses TLS"),
    (redis.ConnectionError, "Redis cannot be reached", "start it, or correct the address"),
    ("MISCONF", "Redis cannot write to its disk", "free space on it; the server's log says more"),
    ("OOM", "Redis is out of memory", "raise its maxmemory; maxmemory-policy must be noeviction"),
)


class RefusedUserError(ServiceError):
    """The server refuses the role's user or its password, or wants one. `given`: whether a password is set."""

    def __init__(self, error: redis.RedisError, url: str, username: str, role: Role, *, given: bool) -> None:
        self.user, self.role, self.why = username or "default", role, f"({url}): {error}"
        whom = "or its password" if given else "for whom no password is set"
        what = f"Redis refuses the user {self.user} {whom} {self.why}"
        fix = f"this is done as {role}: set {_secret(role)} or {FOR_ALL}"
        super().__init__(Problem("redis.url", what, fix))


def refused_users(errors: Sequence[RefusedUserError]) -> tuple[Problem, ...]:
    """Returns the problem of all these users together; none if there are none."""
    users = list(dict.fromkeys(error.user for error in errors))
    if len(users) < 2:
        return errors[0].problems if errors else ()
    secrets = (_secret(error.role) for error in errors)
    what = f"Redis refuses the users {', '.join(users)} or their passwords {errors[0].why}"
    return (Problem("redis.url", what, f"set {', '.join(secrets)}, or for all roles {FOR_ALL}"),)


def _secret(role: Role) -> str:
    return f"ECHO_QUEUE_{role.upper()}_REDIS_PASSWORD"


FOR_ALL = "ECHO_QUEUE_REDIS_PASSWORD (or …_FILE), and redis.username"


SENTINEL_REFUSALS = ("AuthenticationError", "NoPermissionError", "NOAUTH", "WRONGPASS")
SENTINEL_FAILURE = " : "
"""Precedes, in the words of redis-py, how each Sentinel failed that was asked for a master."""


def refuses_user(error: redis.RedisError) -> bool:
    """Returns whether the server refuses the user or its password, or wants one."""
    return isinstance(error, exceptions.AuthenticationError) or str(error).startswith("NOAUTH")


def refused_by_sentinels(error: redis.RedisError) -> bool:
    """Returns whether Sentinels refuse us, which redis-py tells among the reasons why it found no master."""
    return isinstance(error, MasterNotFoundError) and any(word in str(error) for word in SENTINEL_REFUSALS)


def explain(error: redis.RedisError, url: str) -> Problem:
    """Returns the problem behind an error of the server at `url`."""
    text = str(error)
    if isinstance(error, MasterNotFoundError) and SENTINEL_FAILURE in text:
        # Each Sentinel is described with all its settings; the kinds of the errors say enough.
        text, kinds = text.partition(SENTINEL_FAILURE)[0], re.findall(r"(\w*(?:Error|NOAUTH|WRONGPASS))\b", text)
        text = f"SENTINELS {'REFUSE' if refused_by_sentinels(error) else 'AWAY'}: {text} ({', '.join(kinds)})"
    if isinstance(error, redis.ConnectionError) and ("SSL" in text or "certificate" in text.lower()):
        text = f"TLS {text}"
    for sign, what, fix in MEANINGS:
        if text.startswith(sign) if isinstance(sign, str) else isinstance(error, sign):
            return Problem("redis.url", f"{what} ({url}): {text}", fix)
    return Problem("redis.url", f"Redis refuses the command ({url}): {text}", "see the server's log")


def may_pass(error: redis.RedisError) -> bool:
    """True if the same call may succeed later: the server is away, loading or failing over."""
    refused = isinstance(error, exceptions.AuthenticationError) or refused_by_sentinels(error)
    if refused or "certificate" in str(error).lower():
        return False
    return isinstance(
        error, redis.ConnectionError | redis.TimeoutError | exceptions.ClusterDownError | exceptions.MasterDownError
    )
