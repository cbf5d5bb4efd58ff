"""Keeps the embedded services of a run alive, and prepares embedded and external ones for the run.

- An endpoint file appears only when its service is ready: Redis answers and has the queue's functions and the run
  rules; the bucket exists.
- A server that ends is started again, with its data and on its port; a server that keeps ending is given up with the
  reason from its log. On stop, the store ends first and Redis last.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial

import redis

from echo_queue.config import Config
from echo_queue.connections import store_check
from echo_queue.connections.connect import connect_redis, connect_store
from echo_queue.connections.endpoints import CELERY_PREFIX, EMBEDDED, announce, services_dir
from echo_queue.connections.secrets import OPTIONAL, ROLES, Role, generate
from echo_queue.connections.storage.object_store import ObjectStore
from echo_queue.errors import EchoQueueError, Problem, ServiceError
from echo_queue.launch.backoff import RestartBackoff
from echo_queue.launch.liveness import LivenessThread
from echo_queue.launch.servers import s3_server
from echo_queue.launch.servers.redis_server import RedisServer, User
from echo_queue.launch.servers.s3_server import S3Server
from echo_queue.launch.signals import set_on_signals
from echo_queue.launch.supervisor import lock
from echo_queue.queue import Admin, Caller, RunRules
from echo_queue.queue.acl import rules

WATCH_S = 0.1
READY_S = 5.0
"""The deadline of each request while a server is prepared; a server that ends meanwhile is started again after it."""

KEEPER_S = 5.0
"""The deadline for a killed keeper of the services to be gone."""
BACKOFF = RestartBackoff(first_pause_s=0.1, longest_pause_s=5.0, settled_s=10.0, most_ends=7)

log = logging.getLogger(__name__)


class Services:
    """The services of one run. Embedded ones are started here; external ones are only prepared."""

    def __init__(self, config: Config, backoff: RestartBackoff = BACKOFF) -> None:
        self.config = config
        self._backoff = backoff
        self._watched: list[Watched] = []

    def start(self) -> None:
        """Starts the embedded services, or finds them running. Raises `ServiceError` or `DeadlineError`."""
        directory = services_dir(self.config)
        directory.mkdir(parents=True, exist_ok=True)
        secrets = generate(directory)
        if self.config.store.url == EMBEDDED:
            s3_server.find_program()  # before Redis starts, which would have to end again
        try:
            if self.config.redis.url == EMBEDDED:
                known = users(self.config.run.name, secrets.redis)
                server = RedisServer(directory / "redis", self.config.redis.program, known)
                self._keep("Redis", server, partial(self._ready_redis, server))
            if self.config.store.url == EMBEDDED:
                store = S3Server(directory / "store", secrets.store)
                self._keep("object store", store, partial(self._ready_store, store))
            for done in prepare(self.config):
                log.info("%s", done)
        except BaseException:
            self.stop()
            raise

    def watch(self) -> None:
        """Starts servers that ended again. Raises `ServiceError` for a server that keeps ending."""
        for watched in self._watched:
            watched.check()

    def trouble(self) -> str:
        """Asks each embedded server once. Returns what is wrong; empty if all of them answer."""
        try:
            said = {watched.name: watched.server.probe() for watched in self._watched}
        except ServiceError as error:
            return str(error)
        return "; ".join(f"the {name} does not answer: {why}" for name, why in said.items() if why)

    def stop(self) -> None:
        """Ends the embedded servers, Redis last."""
        for watched in reversed(self._watched):
            watched.server.stop()

    def _keep(self, name: str, server: RedisServer | S3Server, ready: Callable[[], None]) -> None:
        watched = Watched(name, server, ready, self._backoff)
        self._watched.append(watched)
        watched.start()

    def _ready_redis(self, server: RedisServer) -> None:
        with server.client() as client:
            _install(client, self.config)
        announce(services_dir(self.config) / "redis.json", url=server.url, pid=server.pid)

    def _ready_store(self, server: S3Server) -> None:
        store = ObjectStore(server.endpoint(self.config.store.bucket), self.config.run.name, READY_S)
        store.create_bucket()
        address = {"url": server.url, "pid": server.pid, "directory": server.objects}
        announce(services_dir(self.config) / "store.json", **address, put_once=_log_put_once(store))


def prepare(config: Config) -> Iterator[str]:
    """Makes the servers of the configuration that are not embedded ready for the run, which may be done again.

    Yields what was done, and what is left for a person to do. Raises `ServiceError` for a server that is away, refuses
    user `admin` or its keys, or could lose data.
    """
    if config.redis.url != EMBEDDED:
        with connect_redis(config, "admin") as client:
            _install(client, config)
            yield f"Redis at {config.redis.url}: the queue's functions are loaded, and run {config.run.name} is there"
            yield _users_there(client, config)
    if config.store.url != EMBEDDED:
        store = connect_store(config, "admin")
        store_check.check(store)
        if store.puts_once:  # of a store that never does, the check has said so
            _log_put_once(store)
        yield f"object store at {config.store.url}: bucket {config.store.bucket} can be read, written and listed"


def _users_there(client: redis.Redis, config: Config) -> str:
    """Returns which roles have a Redis user, and how those that lack one get it."""
    if "{role}" not in config.redis.username:
        who = f"every role is Redis user {config.redis.username or 'default'}"
        return (
            f'{who}; with redis.username = "echo-{{role}}" each has its own (`echo-queue redis-users`, docs/rights.md)'
        )
    try:
        known = {name.decode() if isinstance(name, bytes) else name for name in client.acl_users()}
    except redis.ResponseError as error:
        return f"Redis does not say which users it has ({error}): compare them with `echo-queue redis-users`"
    needed = {config.redis.username.replace("{role}", role) for role in ROLES if role not in OPTIONAL}
    missing = [name for name in sorted(needed) if name not in known]
    if missing:
        return f"Redis has no user {', '.join(missing)}: load the ACL file that `echo-queue redis-users` prints"
    return "Redis has a user for each role"


def _install(client: redis.Redis, config: Config) -> None:
    admin = Admin(Caller(client, config.run.name, READY_S))
    admin.install()
    for difference in admin.configure(RunRules.of(config)):
        log.warning("%s", difference)


class Watched:
    """One embedded server, started again until its `RestartBackoff` gives it up."""

    def __init__(
        self, name: str, server: RedisServer | S3Server, ready: Callable[[], None], backoff: RestartBackoff
    ) -> None:
        self.name = name
        self.server = server
        self._ready = ready
        self._backoff = backoff
        self._ends = 0
        self._again_at = 0.0
        self._ready_at: float | None = None

    def start(self) -> None:
        """Starts the server, or finds it running, and prepares it. Raises `ServiceError` or `DeadlineError`."""
        self._ready_at = None
        fresh = self._launch()
        try:
            self._ready()
        except ServiceError:
            if fresh or self.server.alive():
                raise
            fresh = self._launch()  # the server that was found was about to end
            self._ready()
        self._ready_at = time.monotonic()
        log.info(
            "%s %s at %s (pid %s)", self.name, "started" if fresh else "found running", self.server.url, self.server.pid
        )

    def _launch(self) -> bool:
        try:
            return self.server.start()
        except OSError as error:
            what = f"the {self.name} cannot be started: {error.strerror}"
            raise ServiceError(Problem(str(self.server.dir), what, "free space there, or fix its rights")) from None

    def check(self) -> None:
        """Starts the server again if it has ended. Raises `ServiceError` once it has ended too often."""
        if (self._ready_at is not None and self.server.alive()) or time.monotonic() < self._again_at:
            return
        now, log_tail = time.monotonic(), self.server.process.log_tail()
        self._ends = self._backoff.ends_in_a_row(self._ends, now - (self._ready_at or now))
        if self._ends >= self._backoff.most_ends:
            raise ServiceError(self.server.process.explain_end(self.name))
        self._again_at = now + self._backoff.pause_s(self._ends)
        log.warning("%s ended; starting it again. The end of its log: %s", self.name, log_tail[-500:])
        try:
            self.start()
        except EchoQueueError as error:
            log.warning("%s did not start again: %s", self.name, error)


def users(run: str, passwords: Mapping[Role, str], name: str = "{role}") -> list[User]:
    """Returns one Redis user per role that has a password; `admin` comes first.

    In `name`, `{role}` stands for the role.
    """
    prefix = CELERY_PREFIX.format(run=run)
    return [User(name.replace("{role}", role), passwords[role], rules(role, run, prefix)) for role in passwords]


def serve(
    config: Config,
    stop: threading.Event | None = None,
    backoff: RestartBackoff = BACKOFF,
    once_ready: Callable[[], None] = lambda: None,
    before_end: Callable[[], None] = lambda: None,
) -> None:
    """Runs the services until `stop` is set or, without one, until SIGTERM or SIGINT.

    `once_ready` is called once they answer, and `before_end` while they still do. Raises `RunningError` while another
    process keeps them: it, and nobody else, ends them.
    """
    if stop is None:
        stop = threading.Event()
        set_on_signals(stop)
    services_dir(config).mkdir(parents=True, exist_ok=True)
    with lock(services_dir(config), KEEPER_S):
        services = Services(config, backoff)
        services.start()
        once_ready()
        if EMBEDDED not in (config.redis.url, config.store.url):
            log.info(
                "both servers are your own, so nothing is served here: `echo-queue prepare` does the same, and ends"
            )
        try:
            with LivenessThread("services", services.trouble):
                while not stop.wait(WATCH_S):
                    services.watch()
            before_end()
        finally:
            services.stop()


def _log_put_once(store: ObjectStore) -> bool:
    """Returns whether the store puts once, and logs what it means if two writers can both win."""
    if not (store.puts_once and store.elects_one()):
        log.info(
            "the store at %s cannot elect one of two writers at the same instant: two learners that publish one "
            "version could overwrite each other's manifest; the lineage, fenced in Redis, decides whose is used",
            store.endpoint.url,
        )
    return store.puts_once
