"""A real worker on a machine that has nothing but the program, a token and the reward's module."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from echo_queue.cli.join.invite import revoke
from echo_queue.config.loading import load
from echo_queue.connections.connect import connect_redis
from echo_queue.errors import IDLE
from echo_queue.fleet.invitation.issuing import issue
from echo_queue.fleet.invitation.register import worker_user
from echo_queue.queue.keys import Keys
from tests.fleet.invitation.inviting_run import RUN, VARIABLES
from tests.fleet.invitation.staged_run import REWARD, StagedRun, staged_run
from tests.processes import children_of, command_of
from tests.source_code import ROOT
from tests.variables import variables_kept
from tests.waiting import wait_until

END_S = 180.0


@pytest.fixture
def staged(tmp_path: Path) -> Iterator[StagedRun]:
    home = tmp_path / "home"
    home.mkdir()
    with variables_kept():
        os.environ.update(VARIABLES)
        with staged_run(home) as staged:
            yield staged


def join(machine: Path, token: str, inviter: str, *options: str) -> "subprocess.Popen[str]":
    """Starts `echo-queue join` in an environment that has no variable of ours."""
    machine.mkdir(exist_ok=True)
    (machine / "rewards.py").write_text(REWARD)
    environ = {"PATH": os.environ["PATH"], "PYTHONPATH": f"{ROOT}:{machine}", "HOME": str(machine)}
    command = [sys.executable, "-m", "echo_queue.cli", "join", "-", "--inviter", inviter, *options]
    given = machine / "token"
    given.write_text(f"{token}\n")
    with given.open() as words:
        return subprocess.Popen(command, cwd=machine, env=environ, stdin=words, stderr=subprocess.PIPE, text=True)


@pytest.mark.slow
def test_a_worker_that_was_invited_generates_until_its_invitation_is_revoked(staged: StagedRun, tmp_path: Path) -> None:
    config = load(staged.harness.path)
    issued = issue(config, "gpu-1", 600.0)
    worker = join(tmp_path / "machine", issued.token, issued.public_key)
    try:
        groups = staged.harness.drain(4)
        assert {group.worker for group in groups} == {f"gpu-1-{issued.invitation.id}-0"}
        assert all(sample.reward >= 0 for group in groups for sample in group.samples)
        with connect_redis(config, "admin") as admin:
            users = {line["user"] for line in admin.client_list() if line["user"].startswith("worker")}
            assert users == {worker_user(RUN, issued.invitation.id)}
        revoke(config, issued.invitation.id)
        assert staged.harness.status().in_flight == 0, "what it held is free at once"
        _, said = worker.communicate(timeout=END_S)
        assert worker.returncode == 2, said
        assert f"{issued.invitation.id} was revoked" in said and "fix that" not in said, said
    finally:
        worker.kill()
        worker.wait(END_S)


def workers_of(joined: "subprocess.Popen[str]") -> dict[str, int]:
    """Returns the workers that run on this machine, by name, with their process ids."""
    commands = {pid: command_of(pid) for pid in children_of(joined.pid)}
    return {words[words.index("--name") + 1]: pid for pid, words in commands.items() if "--name" in words}


@pytest.mark.slow
def test_a_machine_keeps_its_workers_alive_and_ends_them_with_nothing_lost(staged: StagedRun, tmp_path: Path) -> None:
    issued, machine, run = issue(load(staged.harness.path), "gpu", 600.0), tmp_path / "machine", staged.harness
    names = [f"gpu-{issued.invitation.id}-{number}" for number in range(2)]
    joined = join(machine, issued.token, issued.public_key, "--workers", "2")
    try:
        wait_until(lambda: [worker.name for worker in run.status().workers] == names, "both workers")
        killed = workers_of(joined)[names[1]]
        os.kill(killed, signal.SIGKILL)
        wait_until(lambda: workers_of(joined).get(names[1], killed) != killed, "the one that was killed to be back")
        assert {group.worker for group in run.drain(4)} <= set(names)
        twice = join(machine, issued.token, issued.public_key)
        _, said = twice.communicate(timeout=END_S)
        assert (twice.returncode, said.count("is being run already")) == (2, 1), said
        joined.terminate()
        _, said = joined.communicate(timeout=END_S)
        assert joined.returncode == 0, said
        assert all(f"{name} has no GPU of its own; its log is" in said for name in names)
        run.queue.evict(names[1])  # what it held when it was killed
        run.queue.reclaim()
        assert (run.status().in_flight, run.status().workers, run.queue.audit().ok) == (0, (), True)
    finally:
        joined.kill()
        joined.wait(END_S)


@pytest.mark.slow
def test_a_machine_that_waits_in_vain_for_a_learner_ends_its_workers_and_says_that_it_is_still_paid_for(
    staged: StagedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ECHO_QUEUE_ROLLOUT__IDLE_DEADLINE_S", "1")
    issued = issue(load(staged.harness.path), "gpu", 600.0)
    joined = join(tmp_path / "machine", issued.token, issued.public_key)
    try:
        staged.harness.drain(4)  # it generates all that the window allows, and nobody goes on
        _, said = joined.communicate(timeout=END_S)
        assert joined.returncode == IDLE, said
        assert "no task came for" in said and "this machine goes on, as does its bill" in said
    finally:
        joined.kill()
        joined.wait(END_S)


@pytest.mark.proof(kind="whole runs", share=0.15)
def test_an_invited_worker_ends_where_somebody_else_signs_the_weights(staged: StagedRun, tmp_path: Path) -> None:
    """What it compares: `test_join.py`."""
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
