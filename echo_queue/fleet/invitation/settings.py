"""The settings that travel in a token: what all workers of a run share, and nothing that belongs to one machine.

A machine takes no other key from a token, whoever signed it: no path, no program, no address of a server on its own
network. Such settings are those of the machine; `ECHO_QUEUE_SECTION__KEY` gives them.
"""

from collections.abc import Iterator, Mapping
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

from echo_queue.config import Config
from echo_queue.config.checks import NAMED
from echo_queue.connections.endpoints import EMBEDDED
from echo_queue.errors import Problem

SHARED: Mapping[str, tuple[str, ...]] = {
    "run": ("name", "seed", "keep_open"),
    "redis": ("url", "wait_replicas", "wait_ms", "durable"),
    "store": ("url", "bucket", "region", "checksums"),
    "model": ("base", "init", "lora", "dtype", "max_prompt_tokens", "max_new_tokens"),
    "environment": ("kind", "function", "options", "max_turns", "timeout_s", "reward_min", "reward_max"),
    "rollout": (
        *("workers", "engine", "mode", "group_size", "concurrent_groups", "progress_s", "temperature", "top_p"),
        *("threads", "grace_s", "idle_deadline_s"),
    ),
    "staleness": ("s", "kappa", "pace", "late", "late_deadline_s"),
    "queue": ("lease_s", "max_attempts", "inline_max_bytes", "group_max_bytes", "longest_first", "stall_deadline_s"),
    "learner": ("batch_groups",),
    "weights": ("chunk_bytes", "part_bytes", "encrypt", "public_key", "peers", "chunk_deadline_s"),
    "telemetry": ("heartbeat_s",),
}
"""Section → its keys that a token may have."""
TLS_FIX = "serve Redis over TLS and name it rediss://host:port/db, with redis.ca_file if its authority is your own"


def shared(config: Config) -> dict[str, dict[str, Any]]:
    """Returns the settings of `config` that its workers share, as far as they are no defaults."""
    given = config.model_dump(mode="json", exclude_defaults=True)
    found = {section: {key: given[section][key] for key in keys if key in given.get(section, {})}
             for section, keys in SHARED.items()}  # fmt: skip
    return {section: values for section, values in found.items() if values}


def foreign(settings: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Returns the keys of a token that no token may have."""
    return [
        f"{section}.{key}"
        for section, values in settings.items()
        for key in values
        if key not in SHARED.get(section, ())
    ]


def code_named(settings: Mapping[str, Mapping[str, Any]]) -> str:
    """Returns the code that a worker with these settings would run (`module:name`), or an empty text if it is ours."""
    environment = settings.get("environment", {})
    return str(environment.get("function", "")) if environment.get("kind") in NAMED else ""


def uninviting(config: Config) -> Iterator[Problem]:
    """Yields why nobody can be invited to a run with this configuration."""
    for key, url in (("redis.url", config.redis.url), ("store.url", config.store.url)):
        if url == EMBEDDED:
            what = 'is "embedded": that server listens on 127.0.0.1, where no other machine can reach it'
            yield Problem(key, what, "name a server of your own, and run `echo-queue prepare CONFIG` once")
    if config.redis.url != EMBEDDED and not is_private(config.redis.url, config.redis.ca_file is not None):
        yield Problem(
            "redis.url", f"{config.redis.url} is not encrypted: passwords would be readable on the way", TLS_FIX
        )
    if config.rollout.mode == "sync":
        what = 'is "sync": the run\'s only worker takes turns with the learner, on its machine'
        yield Problem("rollout.mode", what, 'set "pull", "push-pull" or "in-flight"')


def is_private(redis_url: str, has_authority: bool) -> bool:
    """Says whether nobody on the way reads what is sent to that Redis: it speaks TLS, or is on this very machine.

    Sentinels speak TLS where an authority is named.
    """
    parts = urlsplit(redis_url)
    if parts.scheme == "rediss" or (parts.scheme == "redis+sentinel" and has_authority):
        return True
    return parts.scheme == "redis" and _is_loopback(parts.hostname or "")


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
