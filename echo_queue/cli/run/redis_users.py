"""The command `redis-users`: the ACL file of a Redis server that is not embedded."""

from collections.abc import Iterator
from typing import cast

from echo_queue.config import Config
from echo_queue.connections.secrets import OPTIONAL, ROLES, Role, external_redis_password
from echo_queue.errors import ConfigError, Problem
from echo_queue.launch.servers.redis_server import acl_file
from echo_queue.launch.servers.serving import users


def print_acl_file(config: Config) -> None:
    """Prints the file. Raises `ConfigError` unless each role has a user name and a password of its own."""
    found = {role: external_redis_password(role=role) for role in ROLES}
    passwords = {role: password for role, password in found.items() if password or role not in OPTIONAL}
    if problems := tuple(_problems(config, passwords)):
        raise ConfigError(*problems)
    print(acl_file(users(config.run.name, cast(dict[Role, str], passwords), config.redis.username)), end="")


def _problems(config: Config, passwords: dict[Role, str | None]) -> Iterator[Problem]:
    if "{role}" not in config.redis.username:
        what = f'"{config.redis.username}" is the same user for every role'
        yield Problem("redis.username", what, 'write "{role}", or a name that contains it')
    given = list(passwords.values())
    for role, password in passwords.items():
        variable = f"ECHO_QUEUE_{role.upper()}_REDIS_PASSWORD"
        if not password:
            yield Problem(variable, "is not set", f"set it, or {variable}_FILE, for each role")
        elif given.count(password) > 1:
            yield Problem(variable, "is the password of another role as well", "give each role a password of its own")
