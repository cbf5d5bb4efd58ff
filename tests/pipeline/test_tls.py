"""A whole run over TLS: an external Redis, its certificate from a private authority, a user for each role."""

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from echo_queue.cli.redis_cli import monitor_line
from echo_queue.connections.endpoints import CELERY_PREFIX
from echo_queue.connections.secrets import ROLES
from echo_queue.launch.servers.redis_server import RedisServer, User
from echo_queue.queue import acl, library
from tests.pipeline.supervised_run import (
    TINY,
    SupervisedRun,
    assert_each_group_is_of_one_version,
    assert_every_prompt_was_trained_once,
)
from tests.servers.ports import free_port
from tests.servers.tls import certify, tls_words

RUN, PASSWORD = "tiny", "secret"


@dataclass(frozen=True)
class ExternalServices:
    """A server that speaks TLS at `port`, to whom the certificate of `authority` vouches for it."""

    port: int
    authority: Path

    def settings(self, authority: Path | None) -> dict[str, str]:
        settings = {
            "ECHO_QUEUE_REDIS__URL": f"rediss://localhost:{self.port}/0",
            "ECHO_QUEUE_REDIS__USERNAME": "{role}",
            "ECHO_QUEUE_REDIS_PASSWORD": PASSWORD,
        }
        return settings | ({"ECHO_QUEUE_REDIS__CA_FILE": str(authority)} if authority else {})


@pytest.fixture
def external(tmp_path: Path) -> Iterator[ExternalServices]:
    folder = tmp_path / "tls"
    folder.mkdir()
    certify(folder)
    port = free_port()
    users = [
        User(role, PASSWORD, acl.rules(role, RUN, CELERY_PREFIX.format(run=RUN)))
        for role in sorted(ROLES, key="admin".__ne__)
    ]
    server = RedisServer(
        folder / "redis",
        Path(shutil.which("redis-server") or ""),
        users,
        tls_words(folder, port),
    )
    server.start()
    library.load(server.client())
    yield ExternalServices(port, folder / "authority.pem")
    server.stop()


def command(run: SupervisedRun, *words: str) -> "subprocess.CompletedProcess[str]":
    whole = [sys.executable, "-m", "echo_queue.cli", *words, str(TINY)]
    return subprocess.run(
        whole, cwd=run.directory, env=run.environ, capture_output=True, text=True, timeout=180, check=False
    )


@pytest.mark.proof(kind="whole runs", share=0.15)
def test_a_whole_run_speaks_tls(
    tmp_path: Path, base: Path, external: ExternalServices, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers, learner, submitter and Celery's broker; the looks of an operator as well.

    Weights change between generations: each group is of one version.
    """
    monkeypatch.setenv("ECHO_QUEUE_REDIS_PASSWORD", PASSWORD)
    mode = {"ECHO_QUEUE_ROLLOUT__MODE": "push-pull"}
    run = SupervisedRun(tmp_path, base, **mode, **external.settings(external.authority))
    try:
        assert run.ends() == 0, run.told()
        assert "trained" in command(run, "status").stdout
        line = monitor_line(run.config)
        assert "--tls" in shlex.split(line)
        asked = subprocess.run(
            f"{line} GET nothing; {line} HGET 'eq:{{{RUN}}}:state' finished",
            shell=True, env=os.environ | run.environ, capture_output=True, text=True, timeout=30, check=False,
        )  # fmt: skip
        assert ("NOPERM" in asked.stdout + asked.stderr, asked.stdout.split()[-1].isdecimal()) == (True, True)
        assert_every_prompt_was_trained_once(run)
        assert_each_group_is_of_one_version(run)
    finally:
        run.stop()


@pytest.mark.slow
def test_a_certificate_of_an_unknown_authority_ends_a_run_before_it_starts(
    tmp_path: Path, external: ExternalServices
) -> None:
    run = SupervisedRun(tmp_path, **external.settings(None))
    try:
        assert run.ends() == 2
        assert "redis.ca_file" in run.output.read_text()
        assert not (run.config.run.dir / "logs").exists()
    finally:
        run.stop()
