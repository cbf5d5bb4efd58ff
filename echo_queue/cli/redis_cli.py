"""The `redis-cli` command line for the read-only user of a run, ready to be copied; it never contains a password."""

import os
import shlex
from collections.abc import Mapping
from urllib.parse import urlsplit

from echo_queue.atomic_file import write_atomically
from echo_queue.config import Config
from echo_queue.connections.endpoints import EMBEDDED, RedisEndpoint, redis_endpoint, services_dir

PASSWORD_FILE = "monitor.password"


def monitor_line(config: Config) -> str:
    """Returns the command line. It reads the password from a file of the run, or from the environment if external."""
    endpoint = redis_endpoint(config, "monitor")
    if config.redis.url != EMBEDDED:
        return f"{_password()}{_command(endpoint)}"
    file = services_dir(config) / PASSWORD_FILE
    if not file.exists() or file.read_text() != endpoint.password:
        write_atomically(file, (endpoint.password or "").encode(), "password", mode=0o600)
    return f"REDISCLI_AUTH=$(cat {shlex.quote(str(file))}) {_command(endpoint)}"


def _password(environ: Mapping[str, str] = os.environ) -> str:
    """Returns how the shell passes the password on, from where this command has it; nothing if it has none."""
    for name in ("ECHO_QUEUE_MONITOR_REDIS_PASSWORD", "ECHO_QUEUE_REDIS_PASSWORD"):
        if name in environ:
            return f'REDISCLI_AUTH="${name}" '
        if f"{name}_FILE" in environ:
            return f'REDISCLI_AUTH="$(cat "${name}_FILE")" '
    return ""


def _command(endpoint: RedisEndpoint) -> str:
    address = urlsplit(endpoint.url)
    if address.scheme == "redis+sentinel":
        host, _, port = address.netloc.partition(",")[0].rpartition(":")
        return (
            f"redis-cli -h {host.strip('[]')} -p {port} SENTINEL get-master-addr-by-name {address.path.split('/')[1]}"
        )
    host, database = address.hostname or "", address.path.lstrip("/")
    options = {"--user": endpoint.username, "-h": "" if host == "127.0.0.1" else host, "-p": str(address.port or 6379)}
    options |= {"-n": "" if database == "0" else database, "--cacert": str(endpoint.ca_file or "")}
    words = [f"{name} {shlex.quote(value)}" for name, value in options.items() if value]
    return " ".join(["redis-cli", *(["--tls"] if address.scheme == "rediss" else []), *words])
