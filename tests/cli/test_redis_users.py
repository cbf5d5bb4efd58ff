"""`echo-queue redis-users` makes the users of a Redis of one's own."""

from pathlib import Path

import pytest
import redis

from echo_queue.cli.run.redis_users import print_acl_file
from echo_queue.config import Config
from echo_queue.connections.secrets import ROLES
from echo_queue.errors import ConfigError
from echo_queue.launch.servers.redis_server import RedisServer


def config(username: str = "echo-{role}") -> Config:
    settings = {"url": "rediss://10.0.0.10:6380/0", "username": username}
    return Config.model_validate({"run": {"name": "r", "dir": "runs/r"}, "redis": settings})


@pytest.fixture
def passwords(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, str]:
    """Gives each role a password, in a file as containers have it."""
    given = {role: f"password of {role}" for role in ROLES}
    for role, password in given.items():
        (tmp_path / role).write_text(password + "\n")
        monkeypatch.setenv(f"ECHO_QUEUE_{role.upper()}_REDIS_PASSWORD_FILE", str(tmp_path / role))
    return given


def test_a_server_with_that_file_lets_each_role_in_with_its_own_password_and_rights(
    passwords: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    print_acl_file(config())
    text = capsys.readouterr().out
    assert not any(password in text for password in passwords.values())
    server = RedisServer(tmp_path / "redis")
    server.start()
    (tmp_path / "redis" / "users.acl").write_text(text)
    try:
        with server.client() as before:
            before.acl_load()
        for role, password in passwords.items():
            with redis.Redis(port=server.port, username=f"echo-{role}", password=password) as client:
                assert client.ping()
                assert denied(client) == (role != "admin")
        with redis.Redis(port=server.port) as nobody, pytest.raises(redis.AuthenticationError):
            nobody.ping()
    finally:
        server.stop()


def denied(client: "redis.Redis") -> bool:
    try:
        client.config_get("save")
    except redis.exceptions.NoPermissionError:
        return True
    return False


def test_roles_that_would_be_one_user_are_refused_at_once(
    passwords: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ECHO_QUEUE_WORKER_REDIS_PASSWORD", passwords["learner"])
    monkeypatch.delenv("ECHO_QUEUE_CELERY_REDIS_PASSWORD_FILE")
    with pytest.raises(ConfigError) as refused:
        print_acl_file(config(username="everybody"))
    assert {problem.where for problem in refused.value.problems} == {
        "redis.username",
        "ECHO_QUEUE_WORKER_REDIS_PASSWORD",
        "ECHO_QUEUE_LEARNER_REDIS_PASSWORD",
        "ECHO_QUEUE_CELERY_REDIS_PASSWORD",
    }
