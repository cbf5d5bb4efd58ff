"""Issues invitations: refuses what could not work elsewhere, makes the users, and signs token and grant."""

import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from echo_queue.config import Config
from echo_queue.connections.connect import connect_redis, connect_store
from echo_queue.connections.secrets import StoreKeys, external_store_keys, own_variable
from echo_queue.connections.storage.object_store import ObjectStore
from echo_queue.errors import ConfigError, Problem, ServiceError
from echo_queue.fleet.invitation.register import Register, guest_user, worker_user
from echo_queue.fleet.invitation.settings import shared, uninviting
from echo_queue.fleet.invitation.token import TOKEN_DOMAIN, Grant, Invitation, write_grant, write_token
from echo_queue.queue import Caller, TrustedWeights
from echo_queue.weights.signatures import Signer

if TYPE_CHECKING:
    import redis

KEY_NAME = "invitations.key"
"""The inviter's private key, in `run.dir/keys`."""
BASE, ANCHOR = "base/", "weights/"


@dataclass(frozen=True)
class Issued:
    """An invitation and its token. `warnings`: what its owner should know."""

    invitation: Invitation
    token: str
    public_key: str
    warnings: tuple[Problem, ...]


def inviter_key(config: Config) -> Signer:
    """Returns the key that signs this run's invitations on this machine; it is made the first time."""
    return Signer.kept_at(config.run.dir / "keys" / KEY_NAME, TOKEN_DOMAIN)


def issue(config: Config, name: str, valid_s: float, environ: Mapping[str, str] = os.environ) -> Issued:
    """Issues an invitation that can be claimed for `valid_s` seconds; without a name its id is its name.

    It needs the rights of admin in Redis. Raises `ConfigError` for a run to which nobody can be invited, or
    `ServiceError`.
    """
    if problems := tuple(uninviting(config)):
        raise ConfigError(*problems)
    authority, keys = _authority(config.redis.ca_file), _store_keys(environ)
    signer, id = inviter_key(config), secrets.token_hex(6)
    passwords = secrets.token_urlsafe(24), secrets.token_urlsafe(24)
    with connect_redis(config, "admin") as client:
        register = Register(client, config.run.name)
        register.tidy()
        settings = shared(config)
        settings.setdefault("weights", {})["public_key"] = _weights_key(config, client)
        invitation = Invitation(
            id=id,
            name=name or id,
            run=config.run.name,
            redis_url=config.redis.url,
            authority=authority,
            guest=guest_user(config.run.name, id),
            password=passwords[0],
            expires_ms=register.now_ms() + int(valid_s * 1000),
            model_bytes=model_bytes(connect_store(config, "worker")),
            settings=settings,
        )
        given = {} if keys is None else {"access_key": keys.access_key, "secret_key": keys.secret_key}
        grant = Grant(id=id, username=worker_user(config.run.name, id), password=passwords[1], **given)
        register.admit_users(id, invitation.name, *passwords)
        register.offer(
            id, invitation.name, write_grant(grant, signer.seed), signer.public_key, expires_ms=invitation.expires_ms
        )
        warnings = (*register.keep_users(), *_without_keys(keys))
    return Issued(invitation, write_token(invitation, signer), signer.public_key, warnings)


def model_bytes(store: ObjectStore) -> int:
    """Returns the size of the model as the store has it: of the base model or, if that is elsewhere, an anchor."""
    base = sum(stored.size for stored in store.list(BASE))
    if base:
        return base
    folders: dict[str, int] = {}
    for stored in store.list(ANCHOR):
        folder, _, _ = stored.key.rpartition("/")
        folders[folder] = folders.get(folder, 0) + stored.size
    return max(folders.values(), default=0)


def _authority(ca_file: Path | None) -> str:
    if ca_file is None:
        return ""
    try:
        return ca_file.read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(Problem("redis.ca_file", f"{ca_file} cannot be read: {error}", "name a PEM file")) from None


def _store_keys(environ: Mapping[str, str]) -> StoreKeys | None:
    """Returns the workers' keys. Raises `ConfigError` where all roles share a pair, which opens the whole bucket."""
    keys = external_store_keys(environ, "worker")
    if keys is not None and not own_variable("worker", "STORE_ACCESS_KEY", environ):
        what = "is not set, and the store's keys that are set are those of every role"
        fix = "give workers a pair with no more rights than theirs (docs/rights.md), and set it and its other half"
        raise ConfigError(Problem("ECHO_QUEUE_WORKER_STORE_ACCESS_KEY", what, fix))
    return keys


def _without_keys(keys: StoreKeys | None) -> tuple[Problem, ...]:
    if keys is not None:
        return ()
    what = "is not set, so the invitation brings no keys of the store"
    fix = "set it and its other half, or give the machine a profile or a role of its own"
    return (Problem("ECHO_QUEUE_WORKER_STORE_ACCESS_KEY", what, fix),)


def _weights_key(config: Config, client: "redis.Redis") -> str:
    """Returns the key that the worker is to trust for its weights."""
    keys = TrustedWeights(Caller(client, config.run.name, 5.0)).run_keys()
    expected = config.weights.public_key or (keys.public_key if keys else "")
    if not expected:
        what = "the learner has named no key for its weights yet, and weights.public_key is not set"
        raise ServiceError(Problem("weights.public_key", what, "start the learner once, then invite"))
    if keys is not None and keys.public_key != expected:
        what = f"the run's learner signs with {keys.public_key[:16]}…, not with this key"
        raise ServiceError(Problem("weights.public_key", what, "find out who else writes to this Redis"))
    return expected
