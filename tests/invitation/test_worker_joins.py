"""A real worker on a machine that has nothing but the program, a token and the reward's module."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from echo_queue.config.loading import load
from echo_queue.connections.connect import connect_redis
from echo_queue.invitation.issuing import issue
from echo_queue.invitation.register import Register, worker_user
from echo_queue.queue.keys import Keys
from tests.invitation.conftest import as_it_was
from tests.invitation.inviting_run import RUN, VARIABLES
from tests.invitation.staged_run import REWARD, StagedRun, staged_run
from tests.source_code import ROOT

END_S = 60.0


@pytest.fixture
def staged(tmp_path: Path) -> Iterator[StagedRun]:
    home = tmp_path / "home"
    home.mkdir()
    with as_it_was():
        os.environ.update(VARIABLES)
        with staged_run(home) as staged:
            yield staged


def join(machine: Path, token: str, inviter: str) -> "subprocess.Popen[str]":
    """Starts `echo-queue join` in an environment that has no variable of ours."""
    machine.mkdir()
    (machine / "rewards.py").write_text(REWARD)
    environ = {"PATH": os.environ["PATH"], "PYTHONPATH": f"{ROOT}:{machine}", "HOME": str(machine)}
    command = [sys.executable, "-m", "echo_queue.cli", "join", token, "--inviter", inviter]
    return subprocess.Popen(command, cwd=machine, env=environ, stderr=subprocess.PIPE, text=True)


@pytest.mark.slow
def test_a_worker_that_was_invited_generates_until_its_invitation_is_revoked(staged: StagedRun, tmp_path: Path) -> None:
    config = load(staged.harness.path)
    issued = issue(config, "gpu-1", 600.0)
    worker = join(tmp_path / "machine", issued.token, issued.public_key)
    try:
        groups = staged.harness.drain(4)
        assert {group.worker for group in groups} == {"gpu-1"}
        assert all(sample.reward >= 0 for group in groups for sample in group.samples)
        with connect_redis(config, "admin") as admin:
            users = {line["user"] for line in admin.client_list() if line["user"].startswith("worker")}
            assert users == {worker_user(RUN, issued.invitation.id)}
            Register(admin, RUN).revoke(issued.invitation.id)
        _, said = worker.communicate(timeout=END_S)
        assert worker.returncode == 2, said
        assert "an invited worker's user is gone once it is revoked" in said or "refuses the user" in said
    finally:
        worker.kill()
        worker.wait(END_S)


@pytest.mark.slow
def test_an_invited_worker_ends_where_somebody_else_signs_the_weights(staged: StagedRun, tmp_path: Path) -> None:
    config = load(staged.harness.path)
    issued = issue(config, "gpu-1", 600.0)
    with connect_redis(config, "admin") as admin:
        admin.hset(Keys(RUN).run_keys, "public_key", "ab" * 32)
    worker = join(tmp_path / "machine", issued.token, issued.public_key)
    try:
        _, said = worker.communicate(timeout=END_S)
        assert (worker.returncode, "another process writes to this Redis" in said) == (2, True), said
    finally:
        worker.kill()
        worker.wait(END_S)
