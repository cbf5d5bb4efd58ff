"""The `redis-cli` line for the read-only user of a run, ready to be copied; no password is ever in it."""

import os
import shlex
from urllib.parse import urlsplit

from echo_queue.config import Config
from echo_queue.services.secrets import generated

MONITOR_FILE = "monitor.password"


def monitor_line(config: Config) -> str:
    """For an embedded server the password is read from a file of the run, otherwise from the environment."""
    if config.redis.url != "embedded":
        return _external(config)
    directory = config.run.dir / "services"
    _write_password(config)
    port = (directory / "redis" / "port").read_text().strip()
    return f"REDISCLI_AUTH=$(cat {shlex.quote(str(directory / MONITOR_FILE))}) redis-cli --user monitor -p {port}"


def _write_password(config: Config) -> None:
    directory = config.run.dir / "services"
    path = directory / MONITOR_FILE
    password = generated(directory).redis["monitor"]
    if not path.exists() or path.read_text() != password:
        draft = path.with_suffix(f".{os.getpid()}")
        draft.touch(mode=0o600)
        draft.write_text(password)
        draft.replace(path)


def _external(config: Config) -> str:
    address = urlsplit(config.redis.url)
    user = config.redis.username.format(role="monitor")
    url = f"{address.scheme}://{address.hostname}:{address.port or 6379}{address.path}"
    options = [("--user", user), ("--cacert", str(config.redis.ca_file or ""))]
    words = [f"{name} {shlex.quote(value)}" for name, value in options if value]
    return " ".join(["REDISCLI_AUTH=$ECHO_QUEUE_REDIS_PASSWORD redis-cli", "-u", shlex.quote(url), *words])
