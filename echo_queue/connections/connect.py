"""Connects a role to its services, and explains every failure to do so.

- A Redis connection never re-sends a command by itself: the callers repeat moves, since they know which may be
  repeated. It gives up on a silent server after `SOCKET_TIMEOUT_S`.
- Every failure is one `ServiceError` that names the configuration key and the fix.
"""

from typing import Any
from urllib.parse import urlsplit

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from redis.sentinel import Sentinel

from echo_queue.config import Config
from echo_queue.config import Redis as RedisSettings
from echo_queue.connections import redis_check
from echo_queue.connections.endpoints import (
    EMBEDDED,
    START_EMBEDDED,
    RedisEndpoint,
    away,
    redis_endpoint,
    services_dir,
    store_endpoint,
)
from echo_queue.connections.redis_errors import RefusedUserError, explain, may_pass, refused_users, refuses_user
from echo_queue.connections.retries import repeat
from echo_queue.connections.secrets import Role
from echo_queue.connections.server_directory import ServerDirectory
from echo_queue.connections.storage.errors import Unreachable
from echo_queue.connections.storage.object_store import ObjectStore
from echo_queue.errors import Problem, ServiceError

SOCKET_TIMEOUT_S = 30.0
"""No command may block longer than this; the longest blocking read of a caller stays well below."""
CONNECT_TIMEOUT_S = 5.0
HEALTH_CHECK_S = 15
CONNECT_DEADLINE_S = 5.0
"""The longest wait of a role for services that are starting, restarting or failing over."""
ONLOOKERS: tuple[Role, ...] = ("monitor", "celery")
"""The roles that make no move; `echo-queue status` also shows a run whose server is set badly."""


def connect_redis(
    config: Config, role: Role, deadline_s: float = CONNECT_DEADLINE_S, *, judge: bool = True
) -> redis.Redis:
    """Returns a tested connection as `role`'s user (RESP2, bytes, no retries of its own).

    Raises `ServiceError`, also for a server that would lose data (`redis_check`): except for those who only look, and
    without `judge`.
    """

    def connect() -> redis.Redis:
        endpoint = redis_endpoint(config, role)
        client = _open_redis(endpoint, role)
        if judge and role not in ONLOOKERS:
            try:
                _require_replicas(client, config.redis)
                redis_check.check(client, config.redis, config.run.name, role)
            except redis.RedisError as error:
                client.close()
                raise _explained(error, endpoint, role) from None
            except ServiceError:
                client.close()
                raise
        return client

    try:
        return repeat(connect, deadline_s)
    except Unreachable as error:
        _raise_if_disk_full(config)
        if config.redis.url != EMBEDDED or error.problems[0].fix == START_EMBEDDED:
            raise
        raise away(config, "redis.url", error.problems[0].what) from None


def require_users(config: Config, *roles: Role) -> None:
    """Raises one `ServiceError` that names all of `roles` whose Redis user or password is refused.

    A server that is away for now is no error.
    """
    refused: list[RefusedUserError] = []
    for role in roles:
        try:
            connect_redis(config, role, deadline_s=0, judge=False).close()
        except RefusedUserError as error:
            refused.append(error)
        except Unreachable:
            return
    if refused:
        raise ServiceError(*refused_users(refused))


def connect_store(config: Config, role: Role = "worker", deadline_s: float = CONNECT_DEADLINE_S) -> ObjectStore:
    """Returns the run's objects, with the role's own keys if it has some (an embedded store has one pair for all).

    Raises `ServiceError` unless the bucket can be listed.
    """

    def connect() -> ObjectStore:
        store = ObjectStore(store_endpoint(config, role), config.run.name)
        store.check(deadline_s=0)
        return store

    try:
        return repeat(connect, deadline_s)
    except Unreachable as error:
        if config.store.url != EMBEDDED or error.problems[0].fix == START_EMBEDDED:
            raise
        raise away(config, "store.url", error.problems[0].what) from None


def _open_redis(endpoint: RedisEndpoint, role: Role) -> redis.Redis:
    client = redis_client(endpoint)
    try:
        client.ping()
    except redis.RedisError as error:
        client.close()
        raise _explained(error, endpoint, role) from None
    return client


def _explained(error: redis.RedisError, endpoint: RedisEndpoint, role: Role) -> ServiceError:
    if refuses_user(error):
        given = endpoint.password is not None
        return RefusedUserError(error, endpoint.url, endpoint.username, role, given=given)
    return (Unreachable if may_pass(error) else ServiceError)(explain(error, endpoint.url))


def _require_replicas(client: redis.Redis, settings: RedisSettings) -> None:
    """Raises `Unreachable` if replicas are missing: WAIT counts them on a connection that has written nothing."""
    if not settings.wait_replicas:
        return
    attached = client.wait(settings.wait_replicas, settings.wait_ms)
    if attached < settings.wait_replicas:
        what = f"{attached} of {settings.wait_replicas} replicas are attached to {settings.url}"
        raise Unreachable(Problem("redis.wait_replicas", what, "start the missing ones, or lower the number"))


def _raise_if_disk_full(config: Config) -> None:
    """Raises `ServiceError` if the embedded server ended because its disk is full.

    Such a server ends because it acknowledges nothing that it cannot keep.
    """
    server = ServerDirectory(services_dir(config) / "redis")
    if config.redis.url == EMBEDDED and not server.alive() and server.disk_full:
        raise ServiceError(server.explain_end("Redis server")) from None


def redis_client(endpoint: RedisEndpoint) -> redis.Redis:
    """Returns an untested connection pool. Raises `ServiceError` for a URL that names no server."""
    settings: dict[str, Any] = {
        "username": endpoint.username or None,
        "password": endpoint.password,
        "protocol": 2,
        "decode_responses": False,
        "retry": Retry(NoBackoff(), 0),
        "socket_timeout": SOCKET_TIMEOUT_S,
        "socket_connect_timeout": CONNECT_TIMEOUT_S,
        "socket_keepalive": True,
        "health_check_interval": HEALTH_CHECK_S,
    }
    tls: dict[str, Any] = {"ssl_ca_certs": str(endpoint.ca_file)} if endpoint.ca_file else {}
    try:
        parts = urlsplit(endpoint.url)
        match parts.scheme:
            case "redis":
                return redis.Redis.from_url(endpoint.url, **settings)
            case "rediss":
                return redis.Redis.from_url(endpoint.url, **settings, **tls)
            case "redis+sentinel":
                service, _, database = parts.path.strip("/").partition("/")
                hosts = [_host_and_port(part) for part in parts.netloc.split(",")]
                settings |= {"db": int(database or 0)} | (tls | {"ssl": True} if tls else {})
                patience = {"socket_timeout": CONNECT_TIMEOUT_S, "retry": Retry(NoBackoff(), 0)}
                sentinels: Any = Sentinel(hosts, sentinel_kwargs=patience | endpoint.sentinel_login())  # type: ignore[no-untyped-call]
                master: redis.Redis = sentinels.master_for(service, **settings)
                return master
    except ValueError as error:
        raise ServiceError(Problem("redis.url", f"{endpoint.url}: {error}", _URL_FIX)) from None
    raise ServiceError(Problem("redis.url", f"{endpoint.url} has a scheme that is not supported", _URL_FIX))


_URL_FIX = "write redis://host:port/db, rediss://host:port/db or redis+sentinel://h1:p,h2:p/service/db"


def _host_and_port(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host:
        raise ValueError(f"Sentinel {text} has no port")
    return host.removeprefix("[").removesuffix("]"), int(port)
