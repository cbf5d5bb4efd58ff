"""Compares how a Redis server is set with what the promises need: the one place where both are known.

- `read_facts` asks the server, `judge` is pure, and `check` does both for a role that connects: it raises what loses
  data, and logs what weakens a promise.
- A fact that a managed service hides is never taken for a good one: `admin` says it, whose `prepare` or `services`
  comes before every run. No other role may read all of them (`CONFIG GET` shows passwords), so none has more to say.
  Users of workers and submitters may see version and place alone.
- The table of docs/reliability.md, "What Redis must be", has one row for each rule here.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import redis
from redis.exceptions import MovedError, NoPermissionError

from echo_queue.config import Redis as RedisSettings
from echo_queue.connections.endpoints import EMBEDDED
from echo_queue.connections.secrets import Role
from echo_queue.connections.verdict import Verdict
from echo_queue.errors import Problem

FLOOR = (7, 0)
"""The first release of Redis with functions. Every release of Valkey has them."""
CONFIGURATION = ("appendfsync", "no-appendfsync-on-rewrite", "aof-load-truncated")
"""The settings that only `CONFIG GET` shows."""
TOLD: tuple[Role, ...] = ("admin",)
"""The roles that say what could not be read: those that might have read it."""
WHERE = "redis.url"
FULL = Problem(
    WHERE,
    "has no memory left (used_memory has reached maxmemory): it takes no prompts and no groups",
    "remove what others keep there, or raise maxmemory",
)
EVERYTHING_EVICTED, EXPIRING_EVICTED = "allkeys-", "volatile-"
"""How the names of policies begin that evict any key, and those that evict keys which expire by themselves."""


@dataclass(frozen=True)
class RedisFacts:
    """How a server is set. What could not be read is None, and its name is in `unread`."""

    server: str = "Redis"
    version: tuple[int, ...] | None = None
    is_replica: bool = False
    in_cluster: bool = False
    owner: str | None = None
    """In a cluster, the address of the node that owns the run's slot, unless it is this one."""
    replicas: int = 0
    full: bool = False
    append_only: bool | None = None
    eviction: str | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    """The `CONFIGURATION` that could be read."""
    unread: tuple[str, ...] = ()


def check(client: redis.Redis, settings: RedisSettings, run: str, role: Role) -> None:
    """Raises `ServiceError` for a server that loses data, and logs what weakens a promise, once per process."""
    facts = read_facts(client, run)
    verdict = judge(facts, settings)
    if role in TOLD and settings.url != EMBEDDED:
        verdict = replace(verdict, warnings=(*verdict.warnings, *unread(facts, settings)))
    verdict.enforce()


def read_facts(client: redis.Redis, run: str) -> RedisFacts:
    """Asks the server for what it lets this user see. Raises `redis.RedisError` for a server that does not answer."""
    try:
        info: dict[str, Any] = client.info()
    except redis.ResponseError:  # no right, or a managed service without the command
        return replace(_greeting(client), owner=_owner(client, run), unread=("INFO",))
    settings = _configuration(client)
    valkey = info.get("valkey_version")
    append_only, eviction = info.get("aof_enabled"), info.get("maxmemory_policy")
    unread = {"appendonly": append_only, "maxmemory-policy": eviction} | dict.fromkeys(CONFIGURATION) | settings
    return RedisFacts(
        server="Valkey" if valkey else "Redis",
        version=_version(str(valkey or info.get("redis_version", ""))),
        is_replica=info.get("role") == "slave",
        in_cluster=bool(info.get("cluster_enabled")),
        owner=_owner(client, run),
        replicas=int(info.get("connected_slaves", 0)),
        full=0 < int(info.get("maxmemory", 0)) <= int(info.get("used_memory", 0)),
        append_only=None if append_only is None else bool(append_only),
        eviction=eviction,
        settings=settings,
        unread=tuple(name for name, value in unread.items() if value is None),
    )


def _greeting(client: redis.Redis) -> RedisFacts:
    """Returns the little that the server tells everybody who says HELLO."""
    try:
        words: Any = client.execute_command("HELLO")  # type: ignore[no-untyped-call]
    except redis.ResponseError:
        return RedisFacts()
    told = {_text(name): _text(value) for name, value in zip(words[::2], words[1::2], strict=False)}
    return RedisFacts(
        server="Valkey" if told.get("server") == "valkey" else "Redis",
        version=_version(told.get("version", "")),
        is_replica=told.get("role") == "replica",
        in_cluster=told.get("mode") == "cluster",
    )


def judge(facts: RedisFacts, settings: RedisSettings, *, submits: bool = False) -> Verdict:
    """Compares the facts with what the promises need (docs/reliability.md).

    `submits`: prompts are to be submitted from here. A full server takes none, and no Celery worker starts with it,
    while other roles only wait until there is room.
    """
    full = (FULL,) if facts.full else ()
    refusals, warnings = tuple(_refusals(facts, settings)), tuple(_warnings(facts, settings))
    return Verdict(refusals + full, warnings) if submits else Verdict(refusals, full + warnings)


def unread(facts: RedisFacts, settings: RedisSettings) -> Iterator[Problem]:
    """Yields one warning about everything that matters and could not be read, if there is anything.

    A server that is too old is refused whatever they are, and shows no more than one of them at a time.
    """
    if _is_too_old(facts):
        return
    known = CONFIGURATION if _kept_elsewhere(settings) else ()
    if names := [
        name for name in facts.unread if name not in known and not (name == "appendonly" and settings.durable)
    ]:
        what = f"{', '.join(names)} cannot be read, even as admin, so it is not known whether writes are kept"
        fix = f"look at the service's own settings, and compare them with docs/reliability.md; {DURABLE}"
        yield Problem(WHERE, what, fix)


def _refusals(facts: RedisFacts, settings: RedisSettings) -> Iterator[Problem]:
    if _is_too_old(facts):
        version = ".".join(map(str, facts.version or ()))
        yield Problem(WHERE, f"Redis {version} has no functions", "use Redis 7.0 or newer, or Valkey")
    if facts.owner is not None:
        what = "this node of a cluster does not own the run's slot"
        yield Problem(WHERE, what, f"name the node that does: {facts.owner}")
    if facts.is_replica:
        yield Problem(WHERE, "names a replica, which takes no writes", "name its primary, or its Sentinels")
    if (facts.eviction or "").startswith(EVERYTHING_EVICTED):
        what = f"maxmemory-policy is {facts.eviction}: a full server would remove prompts and the run's rules"
        yield Problem(WHERE, what, _line("maxmemory-policy", "noeviction"))
    if facts.append_only is False and not settings.durable:
        # Replicas do not help: a primary that starts again empty makes them empty as well.
        what = "appendonly is no: a restart of this server forgets what was submitted"
        yield Problem(WHERE, what, f"{_line('appendonly', 'yes')}; {DURABLE}")
    elif facts.settings.get("appendfsync") == "no" and not _kept_elsewhere(settings):
        what = "appendfsync is no: a loss of power forgets whatever the system had not written yet"
        yield Problem(WHERE, what, f"{_line('appendfsync', 'always')}; or set redis.wait_replicas to 1; {DURABLE}")


def _is_too_old(facts: RedisFacts) -> bool:
    return facts.server == "Redis" and facts.version is not None and facts.version < FLOOR


def _warnings(facts: RedisFacts, settings: RedisSettings) -> Iterator[Problem]:
    if facts.eviction and facts.eviction.startswith(EXPIRING_EVICTED):
        what = f"maxmemory-policy is {facts.eviction}: a full server would remove heartbeats, and workers seem dead"
        yield Problem(WHERE, what, _line("maxmemory-policy", "noeviction"))
    if facts.in_cluster and facts.owner is None:
        what = "is one node of a cluster: the run does not follow its slot to another node"
        yield Problem(WHERE, what, "after a fail-over, or once the slot has moved, name the new node and start again")
    if facts.replicas and not settings.wait_replicas:
        what = f"{facts.replicas} replicas are attached and no move waits for one: a fail-over forgets the last moves"
        yield Problem("redis.wait_replicas", what, "set it to 1; or leave it, and submit again what a fail-over forgot")
    if not _kept_elsewhere(settings):
        yield from _weak_file(facts.settings)


def _weak_file(settings: Mapping[str, str]) -> Iterator[Problem]:
    """Yields what weakens the append-only file."""
    if settings.get("appendfsync") == "everysec":
        what = "appendfsync is everysec: a loss of power forgets up to two seconds of what was acknowledged"
        yield Problem(WHERE, what, _line("appendfsync", "always"))
    if settings.get("no-appendfsync-on-rewrite") == "yes":
        what = "no-appendfsync-on-rewrite is yes: while the file is rewritten, a loss of power forgets more"
        yield Problem(WHERE, what, _line("no-appendfsync-on-rewrite", "no"))
    if settings.get("aof-load-truncated") == "yes":
        what = "aof-load-truncated is yes: a server that was killed while it wrote may load half of a move"
        yield Problem(WHERE, what, f"{_line('aof-load-truncated', 'no')}; redis-check-aof --fix mends a torn file")


DURABLE = "or set redis.durable, where the service itself keeps every write that it acknowledges"


def _kept_elsewhere(settings: RedisSettings) -> bool:
    """Says whether something other than this server's file keeps, at a loss of its power, what it acknowledged last."""
    return settings.durable or settings.wait_replicas > 0


def _line(name: str, value: str) -> str:
    return f"write `{name} {value}` into redis.conf, and `redis-cli CONFIG SET {name} {value}` for now"


def _configuration(client: redis.Redis) -> dict[str, str]:
    """Returns the `CONFIGURATION` that this user may read. Managed services forbid the command to everybody."""
    try:
        found: dict[Any, Any] = client.config_get(*CONFIGURATION)
    except redis.ResponseError:
        return {}
    return {_text(name): _text(value) for name, value in found.items()}


def _owner(client: redis.Redis, run: str) -> str | None:
    """Returns the node of a cluster that owns the run's slot, unless it is this one, or this user may not ask."""
    try:
        client.hget(f"eq:{{{run}}}:state", "lineage")  # every role may read it
    except MovedError as error:
        return f"{error.host}:{error.port}"
    except NoPermissionError:
        return None
    return None


def _version(text: str) -> tuple[int, ...] | None:
    numbers = text.split(".")
    return tuple(map(int, numbers)) if all(number.isdecimal() for number in numbers) else None


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
