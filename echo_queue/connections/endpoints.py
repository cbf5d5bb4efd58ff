"""The addresses of a run's Redis and object store, and the user that each role is there.

Embedded services write `<run dir>/services/{redis,store}.json` when they are ready; external ones are named in the
configuration. A role gets its own user's password and no other.
"""

import platform
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, cast
from urllib.parse import quote, urlsplit, urlunsplit

import orjson

from echo_queue.atomic_file import write_atomically
from echo_queue.config import Config
from echo_queue.connections.secrets import (
    Role,
    StoreKeys,
    external_redis_password,
    external_store_keys,
    generated,
    generated_password,
    sentinel_login,
)
from echo_queue.connections.storage.endpoint import StoreEndpoint
from echo_queue.connections.storage.errors import Unreachable
from echo_queue.errors import Problem, ServiceError

EMBEDDED = "embedded"
START_EMBEDDED = (
    "`echo-queue run CONFIG` continues the run, `echo-queue services CONFIG` starts the services alone; they serve "
    "their own machine (127.0.0.1): for roles on others, name servers of your own in redis.url and store.url"
)
"""What to do where embedded services do not answer."""
CELERY_PREFIX = "eq-celery:{{{run}}}:"
"""The key prefix of Celery's broker; the ACL of role `celery` allows nothing else. The braces put its keys into the
run's slot of a Redis Cluster: Kombu's commands take several of them at once."""


@dataclass(frozen=True)
class RedisEndpoint:
    """A Redis server and a user on it. `url` has neither user nor password; an empty `username` is the default user."""

    url: str
    username: str = ""
    password: str | None = None
    ca_file: Path | None = None
    sentinel_username: str = ""
    sentinel_password: str | None = None

    def sentinel_login(self) -> dict[str, str | None]:
        """Returns the arguments with which redis-py logs in at the Sentinels, which have users of their own."""
        if self.sentinel_password is None:
            return {}
        return {"username": self.sentinel_username or None, "password": self.sentinel_password}


@dataclass(frozen=True)
class Endpoints:
    """Both services of a run, as one role connects to them."""

    redis: RedisEndpoint
    store: StoreEndpoint


def services_dir(config: Config) -> Path:
    """The directory of the embedded services."""
    return config.run.dir / "services"


def resolve(config: Config, role: Role) -> Endpoints:
    """Returns both endpoints for `role`. Raises `ServiceError` if embedded services never started."""
    return Endpoints(redis_endpoint(config, role), store_endpoint(config, role))


def redis_endpoint(config: Config, role: Role) -> RedisEndpoint:
    """Returns the Redis endpoint for `role`. Raises `ServiceError` if the embedded server never started."""
    if config.redis.url == EMBEDDED:
        address = _read(services_dir(config) / "redis.json")
        return RedisEndpoint(address["url"], role, generated_password(services_dir(config), role))
    username = config.redis.username.replace("{role}", role)
    sentinel = sentinel_login(role=role) if config.redis.url.startswith("redis+sentinel:") else ("", None)
    password, ca_file = external_redis_password(role=role), config.redis.ca_file
    return RedisEndpoint(config.redis.url, username, password, ca_file, *sentinel)


def store_endpoint(config: Config, role: Role = "worker") -> StoreEndpoint:
    """Returns the store's endpoint for `role`. Raises `ServiceError` if the embedded server never started."""
    store = config.store
    if store.url == EMBEDDED:
        address = _read(services_dir(config) / "store.json")
        keys: StoreKeys | None = generated(services_dir(config)).store
        endpoint = StoreEndpoint(
            address["url"], store.bucket, put_once=address["put_once"], directory=Path(address["directory"])
        )
    else:
        keys = external_store_keys(role=role)
        endpoint = StoreEndpoint(store.url, store.bucket, keys_again=partial(external_store_keys, role=role))
    endpoint = replace(endpoint, region=store.region, checksums=store.checksums)
    return replace(endpoint, access_key=keys.access_key, secret_key=keys.secret_key) if keys else endpoint


def own_store(config: Config, role: Role) -> StoreEndpoint | None:
    """Returns the endpoint of a store that is a server of the user's own, who may keep other things there; else None.

    Raises `ServiceError` for half a pair of keys.
    """
    return None if config.store.url == EMBEDDED else store_endpoint(config, role)


def celery_broker_url(config: Config) -> str:
    """Returns the broker's URL with user and password in it, as Celery wants it. Keys go under `CELERY_PREFIX`.

    For a Sentinel service Celery wants one URL per Sentinel, and the service's name as a transport option
    (`master_name`), which is not in this URL.
    """
    endpoint = redis_endpoint(config, "celery")
    parts = urlsplit(endpoint.url)
    if parts.scheme == "redis+sentinel":
        return ";".join(f"sentinel://{_login(endpoint)}{host}" for host in parts.netloc.split(","))
    query = f"ssl_cert_reqs=required&ssl_ca_certs={quote(str(endpoint.ca_file), safe='')}" if endpoint.ca_file else ""
    if parts.scheme == "rediss" and not query:
        query = "ssl_cert_reqs=required"
    return urlunsplit((parts.scheme, _login(endpoint) + parts.netloc, parts.path or "/0", query, ""))


def announce(path: Path, **address: Any) -> None:
    """Writes an endpoint file, whole or not at all; only a service that is ready does so."""
    address["host"] = platform.node()
    write_atomically(path, orjson.dumps(address, option=orjson.OPT_INDENT_2, default=str), "endpoint")


def _login(endpoint: RedisEndpoint) -> str:
    if endpoint.password is None:
        return ""
    return f"{quote(endpoint.username, safe='')}:{quote(endpoint.password, safe='')}@"


def _read(path: Path) -> dict[str, Any]:
    """Reads an endpoint file. Raises `Unreachable` if there is none."""
    try:
        return cast(dict[str, Any], orjson.loads(path.read_bytes()))
    except FileNotFoundError:
        what = f"the embedded services of this run have not started on this machine ({path})"
        raise Unreachable(Problem("services", what, START_EMBEDDED)) from None
    except (OSError, orjson.JSONDecodeError) as error:
        raise ServiceError(
            Problem(str(path), f"cannot be read: {error}", "delete it and restart the services")
        ) from None


def away(config: Config, key: Literal["redis.url", "store.url"], what: str) -> Unreachable:
    """Returns the error of an embedded service that does not answer, `what` being how it does not.

    It names the machine on which the service was started, if the run's directory is on a disk of several.
    """
    host = _read(services_dir(config) / f"{key.removesuffix('.url')}.json").get("host", platform.node())
    elsewhere = "" if host == platform.node() else f"; they were started on {host}, and this is {platform.node()}"
    text = f"the embedded services of this run do not answer: {what}{elsewhere}"
    return Unreachable(Problem("services", text, START_EMBEDDED))
