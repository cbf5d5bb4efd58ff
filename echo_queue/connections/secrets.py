"""Passwords and keys, which are never part of the configuration.

- Those of embedded services are generated once per run and kept in `<run dir>/services/secrets.json` (mode 0600).
- Those of external services come from the environment, or from the file that `…_FILE` names. A variable with a role's
  name, such as `ECHO_QUEUE_WORKER_STORE_ACCESS_KEY`, precedes the one for all roles. Without store keys, boto3's own
  chain (profile, instance role) applies.
- The keys that an engine's server (`rollout.http`) and judges may ask for come from the environment or its file alone.
- The token that whoever asks for metrics must have comes from the environment or its file alone.
- The key that signs weights is made by the learner, unless the environment has it (`learner.publication.signing_key`).
"""

import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, get_args

import orjson

from echo_queue.atomic_file import write_atomically
from echo_queue.errors import Problem, ServiceError

Role = Literal["admin", "submitter", "worker", "learner", "monitor", "controller", "celery"]
FILE = "secrets.json"
SIGNING_KEY = "ECHO_QUEUE_LEARNER_SIGNING_KEY"
ENGINE_KEY = "ECHO_QUEUE_HTTP_API_KEY"
JUDGE_KEY = "ECHO_QUEUE_JUDGE_API_KEY"
METRICS_TOKEN = "ECHO_QUEUE_METRICS_TOKEN"
ROLES: tuple[Role, ...] = get_args(Role)
OPTIONAL: tuple[Role, ...] = ("controller",)
"""Roles that a run may do without, and whose user a server of one's own need not have."""


@dataclass(frozen=True)
class StoreKeys:
    access_key: str
    secret_key: str


@dataclass(frozen=True)
class GeneratedSecrets:
    """The secrets of the embedded services: one Redis password per role, and one pair of store keys."""

    redis: dict[Role, str]
    store: StoreKeys


def generated(directory: Path) -> GeneratedSecrets:
    """Reads `secrets.json` in a services directory. Raises `ServiceError` if no service ever started there."""
    path = directory / FILE
    try:
        values = orjson.loads(path.read_bytes())
        return GeneratedSecrets(dict(values["redis"]), StoreKeys(**values["store"]))
    except OSError as error:
        raise ServiceError(
            Problem(
                str(path), f"cannot be read: {error.strerror}", "start `echo-queue services CONFIG` first, as this user"
            )
        ) from None
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError):
        raise ServiceError(
            Problem(str(path), "is damaged", "delete it and restart the services; the data is kept")
        ) from None


def generated_password(directory: Path, role: Role) -> str:
    """Returns the role's Redis password. Raises `ServiceError` if the services have not run since the role exists."""
    found = generated(directory).redis.get(role)
    if found is None:
        raise ServiceError(
            Problem(
                str(directory / FILE),
                f"has no password for {role}, since an earlier release of echo-queue made it",
                "start the services once with this release (`echo-queue services CONFIG`, or `run`)",
            )
        )
    return found


def generate(directory: Path) -> GeneratedSecrets:
    """Returns a run's secrets, and makes those that it lacks; what there is stays as it is.

    A run of an earlier release lacks the passwords of roles that have come since.
    """
    path = directory / FILE
    if path.exists():
        known = generated(directory)
    else:
        directory.mkdir(parents=True, exist_ok=True)
        # rclone refuses short access keys; 20 characters is what AWS uses.
        known = GeneratedSecrets({}, StoreKeys(secrets.token_hex(10).upper(), secrets.token_hex(20)))
    if lacking := {role: secrets.token_urlsafe(24) for role in ROLES if role not in known.redis}:
        known = replace(known, redis=known.redis | lacking)
        write_atomically(path, orjson.dumps(known, option=orjson.OPT_INDENT_2), "secrets", mode=0o600)
    return known


def external_redis_password(environ: Mapping[str, str] = os.environ, role: Role | None = None) -> str | None:
    """Returns the password for an external Redis, or None if none is set."""
    return _role_secret(role, "REDIS_PASSWORD", environ)[1]


def sentinel_login(environ: Mapping[str, str] = os.environ, role: Role | None = None) -> tuple[str, str | None]:
    """Returns the user and the password for the Sentinels themselves; "" is the default user, None no password."""
    username = _role_secret(role, "SENTINEL_USERNAME", environ)[1] or ""
    return username, _role_secret(role, "SENTINEL_PASSWORD", environ)[1]


def external_store_keys(environ: Mapping[str, str] = os.environ, role: Role | None = None) -> StoreKeys | None:
    """Returns both keys, or None for boto3's own chain. Raises `ServiceError` for one key without the other."""
    name, access = _role_secret(role, "STORE_ACCESS_KEY", environ)
    other, secret = _role_secret(role, "STORE_SECRET_KEY", environ)
    if access and secret:
        return StoreKeys(access, secret)
    if access or secret:
        missing = name.replace("ACCESS", "SECRET") if access else other.replace("SECRET", "ACCESS")
        raise ServiceError(Problem(missing, "is not set but its other half is", "set both, or neither"))
    return None


def signing_key(environ: Mapping[str, str] = os.environ) -> str | None:
    """Returns the learner's private key from the environment (64 hexadecimal digits).

    Without it (None) the learner keeps one in `run.dir/keys`.
    """
    return _from_environment(SIGNING_KEY, environ)


def engine_key(environ: Mapping[str, str] = os.environ) -> str | None:
    """Returns the `--api-key` of the server at `rollout.http.url`, or None if it has none."""
    return _from_environment(ENGINE_KEY, environ)


def judge_key(environ: Mapping[str, str] = os.environ) -> str | None:
    """Returns the key of the servers at `environment.rewards.NAME.judge.url`, or None if they have none."""
    return _from_environment(JUDGE_KEY, environ)


def metrics_token(environ: Mapping[str, str] = os.environ) -> str | None:
    """Returns the bearer token that `echo-queue metrics --listen` asks for, or None if it asks for none."""
    return _from_environment(METRICS_TOKEN, environ)


def own_variable(role: Role, secret: str, environ: Mapping[str, str] = os.environ) -> bool:
    """Returns whether a secret such as `STORE_ACCESS_KEY` is set for `role` alone, in a variable or a file."""
    name = f"ECHO_QUEUE_{role.upper()}_{secret}"
    return name in environ or f"{name}_FILE" in environ


def _role_secret(role: Role | None, secret: str, environ: Mapping[str, str]) -> tuple[str, str | None]:
    """Returns the variable's name and its value: the role's own secret, else the one for all roles."""
    for name in (f"ECHO_QUEUE_{role.upper()}_{secret}" if role else "", f"ECHO_QUEUE_{secret}"):
        if name and (value := _from_environment(name, environ)) is not None:
            return name, value
    return f"ECHO_QUEUE_{secret}", None


def _from_environment(name: str, environ: Mapping[str, str]) -> str | None:
    if name in environ:
        return environ[name]
    file = environ.get(f"{name}_FILE")
    if file is None:
        return None
    try:
        return Path(file).read_text(encoding="utf-8").rstrip("\r\n")
    except OSError as error:
        raise ServiceError(
            Problem(f"{name}_FILE", f"{file} cannot be read: {error.strerror}", "name a readable file")
        ) from None
