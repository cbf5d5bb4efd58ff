"""A machine that runs one role has the secrets of that role alone: checks, and what the role does, need no others."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from echo_queue.connections import store_check
from echo_queue.connections.endpoints import CELERY_PREFIX
from echo_queue.connections.secrets import ROLES, StoreKeys
from echo_queue.connections.storage.object_store import ObjectStore
from echo_queue.launch.servers.redis_server import RedisServer, User
from echo_queue.launch.servers.s3_server import S3Server
from echo_queue.queue import RunRules, acl, library
from tests.first_hour.home import Home
from tests.first_hour.test_before_the_start import CHECK, ends, problems
from tests.queue.clients import Clients

RUN, BUCKET = "first", "machines"
KEYS = StoreKeys("MACHINESTESTKEY00000", "s" * 40)
SECRETS = {"worker": ["worker"], "learner": ["learner"], "submitter": ["submitter", "celery"]}
"""What a machine is for → the roles whose Redis passwords it has."""
SMALL = 1000


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RedisServer, S3Server]]:
    """A Redis with a user for each role, whose password is `NAME-password`, and a store."""
    prefix = CELERY_PREFIX.format(run=RUN)
    users = [User(role, f"{role}-password", acl.rules(role, RUN, prefix)) for role in sorted(ROLES, key="admin".__ne__)]
    redis = RedisServer(tmp_path_factory.mktemp("redis"), None, users)
    store = S3Server(tmp_path_factory.mktemp("s3"), KEYS)
    redis.start()
    store.start()
    ObjectStore(store.endpoint(BUCKET), RUN).create_bucket()
    yield redis, store
    store.stop()
    redis.stop()


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, servers: tuple[RedisServer, S3Server]) -> Iterator[Home]:
    """A home whose run has servers of its own, and no secret yet."""
    redis, store = servers
    monkeypatch.setattr(store_check, "LARGEST_BYTES", SMALL)
    home = Home(tmp_path, monkeypatch)
    home.set(redis__url=redis.url, redis__username="{role}", store__url=store.url, store__bucket=BUCKET)
    with redis.client() as client:
        client.flushall()
        library.load(client)
        Clients(client, RUN, deadline_s=10.0).configure(RunRules(s=1, batch=1))
    yield home
    home.mend()


def give(home: Home, machine: str, *, without: str = "") -> None:
    """Gives the home the secrets of a machine, in files, except the password of one role."""
    for name, secret in (("access", KEYS.access_key), ("secret", KEYS.secret_key)):
        home.text(name, secret)
        home.set(**{f"{machine}_store_{name}_key_file": str(home.folder / name)})
    for role in SECRETS[machine]:
        if role != without:
            home.text(f"{role}.password", f"{role}-password\n")
            home.set(**{f"{role}_redis_password_file": str(home.folder / f"{role}.password")})


@pytest.mark.parametrize("machine", SECRETS)
def test_a_machine_is_checked_with_the_secrets_of_its_role_alone(
    home: Home, capfd: pytest.CaptureFixture[str], machine: str
) -> None:
    give(home, machine)
    assert ends(*CHECK, "--for", machine) == 0, capfd.readouterr().err


@pytest.mark.parametrize("role", ["submitter", "celery"])
def test_a_submission_that_lacks_a_password_declares_nothing_and_names_it(
    home: Home, servers: tuple[RedisServer, S3Server], capfd: pytest.CaptureFixture[str], role: str
) -> None:
    give(home, "submitter", without=role)
    assert ends("submit", "run.toml") == 2
    [(where, what, fix)] = problems(capfd.readouterr().err)
    assert where == "redis.url" and f"refuses the user {role} for whom no password is set" in what
    assert f"ECHO_QUEUE_{role.upper()}_REDIS_PASSWORD" in fix
    with servers[0].client() as client:
        assert Clients(client, RUN).submission_counts("mine") is None


@pytest.mark.slow
@pytest.mark.parametrize("role", ["submitter", "celery"])
def test_a_celery_worker_that_lacks_a_password_ends_and_names_it(home: Home, role: str) -> None:
    give(home, "submitter", without=role)
    home.set(config=str(home.folder / "run.toml"))
    words = [sys.executable, "-m", "celery", "-A", "echo_queue.submission", "worker", "-c", "1"]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode != 0
    assert f"ECHO_QUEUE_{role.upper()}_REDIS_PASSWORD" in ended.stderr and "Traceback" not in ended.stderr


@pytest.mark.parametrize("role", ["worker", "learner"])
def test_a_role_with_a_wrong_password_ends_before_it_imports_torch(
    home: Home, capfd: pytest.CaptureFixture[str], role: str
) -> None:
    give(home, role)
    home.text(f"{role}.password", "another\n")
    assert ends(role, "run.toml") == 2
    [(where, what, fix)] = problems(capfd.readouterr().err)
    assert where == "redis.url" and f"refuses the user {role} or its password" in what
    assert f"ECHO_QUEUE_{role.upper()}_REDIS_PASSWORD" in fix


@pytest.mark.parametrize(("machine", "role"), [(one, role) for one, roles in SECRETS.items() for role in roles])
def test_a_password_that_is_not_there_is_named(
    home: Home, capfd: pytest.CaptureFixture[str], machine: str, role: str
) -> None:
    give(home, machine, without=role)
    assert ends(*CHECK, "--for", machine) == 2
    [(where, what, fix)] = problems(capfd.readouterr().err)
    assert where == "redis.url" and f"refuses the user {role}" in what
    assert f"ECHO_QUEUE_{role.upper()}_REDIS_PASSWORD" in fix
