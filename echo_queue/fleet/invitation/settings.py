"""The settings that travel in a token: what all workers of a run share, and nothing that belongs to one machine.

A machine takes no other key from a token, whoever signed it: no path, no program, no address of a server on its own
network. Such settings are those of the machine; `ECHO_QUEUE_SECTION__KEY` gives them.
"""

from collections.abc import Iterator, Mapping
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

from echo_queue.config import Config
from echo_queue.config.keys import WORKERS, fields_of, keys_of
from echo_queue.config.model import NAMED
from echo_queue.connections.endpoints import EMBEDDED
from echo_queue.errors import Problem

TRAVEL = tuple(key.path for key in keys_of(Config) if key.whose is WORKERS)
"""The keys that a token may have."""
SECTIONS = {key.parent for key in keys_of(Config)}
LISTED = {key.path for key in fields_of(Config) if key.listed}
TLS_FIX = "serve Redis over TLS and name it rediss://host:port/db, with redis.ca_file if its authority is your own"


def shared(config: Config) -> dict[str, Any]:
    """Returns the settings of `config` that its workers share, as far as they are no defaults."""
    kept = _travelling(config.model_dump(mode="json", exclude_defaults=True))
    return {section: values for section, values in kept.items() if values}


def _travelling(settings: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Returns those of the settings that a token may have. `above`: the path of the section that has them."""
    kept: dict[str, Any] = {}
    for name, value in settings.items():
        path = f"{above}{name}"
        if path in SECTIONS and isinstance(value, Mapping):
            kept[name] = _travelling(value, f"{path}.")
        elif path in LISTED:
            kept[name] = [_travelling(table, f"{path}.") for table in value]
        elif path in TRAVEL:
            kept[name] = value
    return kept


def foreign(settings: Mapping[str, Any], above: str = "") -> Iterator[str]:
    """Yields the keys of a token that no token may have. `above`: the path of the section that has these settings."""
    for name, value in settings.items():
        path = f"{above}{name}"
        listed = path in LISTED and isinstance(value, list)
        for table in value if listed else (value,):
            if path in SECTIONS and isinstance(table, Mapping) and listed == (path in LISTED):
                yield from foreign(table, f"{path}.")
            elif path not in TRAVEL:
                yield path


def code_named(settings: Mapping[str, Any]) -> str:
    """Returns the code that a worker with these settings would run (`module:name`), or an empty text if it is ours.

    `settings`: those of a token, of which none is foreign.
    """
    own = [
        one
        for environment in _environments(settings)
        if environment.get("kind") in NAMED
        for one in (environment, *_reward_tables(environment))
    ]
    return ", ".join(dict.fromkeys(str(one["function"]) for one in own if one.get("function")))


def judges_named(settings: Mapping[str, Any]) -> str:
    """Returns the addresses to which a worker with these settings would send answers and its key of judges."""
    tables = [table for environment in _environments(settings) for table in _reward_tables(environment)]
    judges = [table["judge"] for table in tables if isinstance(table.get("judge"), Mapping)]
    return ", ".join(dict.fromkeys(str(one.get("url")) for one in judges))


def _environments(settings: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Returns the environment of the run, and those of its components and its evaluations."""
    scored = (settings, *settings.get("mixture", ()), *settings.get("evaluation", ()))
    return [table["environment"] for table in scored if "environment" in table]


def _reward_tables(environment: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    tables = environment.get("rewards")
    return [table for table in tables.values() if isinstance(table, Mapping)] if isinstance(tables, Mapping) else []


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
