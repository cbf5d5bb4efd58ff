"""Explains failures of Redis to the person who must act: configuration key, what is wrong, the fix."""

import redis
from redis import exceptions
from redis.sentinel import MasterNotFoundError

from echo_queue.errors import Problem

PASSWORD_FIX = "set redis.username, and ECHO_QUEUE_REDIS_PASSWORD or ECHO_QUEUE_REDIS_PASSWORD_FILE"

# The first match counts: a kind of exception, or the beginning of a server's answer.
MEANINGS: tuple[tuple[type[Exception] | str, str, str], ...] = (
    (exceptions.AuthenticationError, "Redis refuses the user or its password", PASSWORD_FIX),
    ("NOAUTH", "Redis wants a password", PASSWORD_FIX),
    (
        exceptions.NoPermissionError,
        "Redis does not allow this role to do that",
        "compare the role's rights with those in docs/rights.md",
    ),
    (redis.BusyLoadingError, "Redis is still loading its data", "wait: a long append-only file takes some time"),
    (MasterNotFoundError, "the Sentinels know no such master", "check the hosts and the service's name"),
    (exceptions.MovedError, "this node of a cluster does not serve the run", "name the node that owns the run's slot"),
    (exceptions.ClusterDownError, "the cluster is down", "see `redis-cli cluster info`"),
    (redis.TimeoutError, "Redis does not answer in time", "check the address, the firewall and the server's load"),
    ("TLS", "the TLS connection failed", "check redis.ca_file, the host's name, and that the server uses TLS"),
    (redis.ConnectionError, "Redis cannot be reached", "start it, or correct the address"),
    ("MISCONF", "Redis cannot write to its disk", "free space on it; the server's log says more"),
    ("OOM", "Redis is out of memory", "raise its maxmemory; maxmemory-policy must be noeviction"),
)


def explain(error: redis.RedisError, url: str) -> Problem:
    """Returns the problem behind an error of the server at `url`."""
    text = str(error)
    if isinstance(error, redis.ConnectionError) and ("SSL" in text or "certificate" in text.lower()):
        text = f"TLS {text}"
    for sign, what, fix in MEANINGS:
        if text.startswith(sign) if isinstance(sign, str) else isinstance(error, sign):
            return Problem("redis.url", f"{what} ({url}): {text}", fix)
    return Problem("redis.url", f"Redis refuses the command ({url}): {text}", "see the server's log")


def may_pass(error: redis.RedisError) -> bool:
    """True if the same call may succeed later: the server is away, loading or failing over."""
    if isinstance(error, exceptions.AuthenticationError) or "certificate" in str(error).lower():
        return False
    return isinstance(
        error, redis.ConnectionError | redis.TimeoutError | exceptions.ClusterDownError | exceptions.MasterDownError
    )
