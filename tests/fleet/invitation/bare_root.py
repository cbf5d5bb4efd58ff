"""A Debian root with Python alone joins a run: `python -m tests.fleet.invitation.bare_root DIST FOLDER`, as root.

The root is made with debootstrap in FOLDER, unless it is there, and gets the wheel of DIST with the extra `worker` from
wheels that are collected outside of it. Nothing of this machine is visible in it but its network. The run it joins has
Redis over TLS with a user for each role, and an S3 server. All that is promised in docs/join.md of tokens is tried.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from echo_queue.config.loading import load
from echo_queue.connections.connect import connect_redis
from echo_queue.fleet.invitation.issuing import Issued, inviter_key, issue
from echo_queue.fleet.invitation.register import Register, worker_user
from echo_queue.fleet.invitation.token import TOKEN_DOMAIN, write_token
from echo_queue.queue.keys import Keys
from echo_queue.weights import Signer
from tests.fleet.invitation.inviting_run import RUN, VARIABLES
from tests.fleet.invitation.staged_run import REWARD, StagedRun, staged_run
from tests.images.engine import ROOT
from tests.servers.tls import certify
from tests.waiting import wait_until

MIRROR = "http://deb.debian.org/debian"
INSTALL_S, COMMAND_S = 900.0, 180.0
OLDER_NEEDS = "async-timeout"
"""The packages that Debian's Python 3.11.2 needs beside what this Python collects."""
MOUNTS = "mount -t proc proc $0/proc && mount --rbind /dev $0/dev && cd $0 && exec chroot $0 /usr/bin/env -i "
"""A mount is there for the command alone, in a name space of its own."""
ENVIRONMENT: Mapping[str, str] = {"PATH": "/opt/echo-queue/bin:/usr/bin:/bin", "HOME": "/srv", "PYTHONPATH": "/srv"}
INSIDE = 'cd /srv && exec "$@"'


class BareRoot:
    """The root, in which programs are started with the variables of `ENVIRONMENT` alone."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "root"
        if not (self.path / "usr/bin/python3").exists():
            packages = "--include=ca-certificates,python3,python3-venv"
            words = ["debootstrap", "--variant=minbase", packages, "bookworm", str(self.path), MIRROR]
            subprocess.run(words, check=True, timeout=INSTALL_S)

    def install(self, wheel: Path, folder: Path) -> None:
        for left in ("opt", "srv"):  # of an earlier run, whose program has the same version
            shutil.rmtree(self.path / left, ignore_errors=True)
            (self.path / left).mkdir()
        wheels = self.path / "opt/wheels"
        constraints = ROOT / "constraints.txt"
        collect = [
            sys.executable,
            "-m",
            "pip",
            "wheel",
            "-q",
            "-w",
            wheels,
            "-c",
            constraints,
            f"{wheel}[worker]",
            OLDER_NEEDS,
        ]
        subprocess.run(collect, check=True, timeout=INSTALL_S, cwd=folder)
        self.says("python3", "-m", "venv", "/opt/echo-queue")
        pip = ("/opt/echo-queue/bin/pip", "install", "-q", "--no-index", "--find-links", "/opt/wheels")
        self.says(*pip, "echo-queue[worker]")
        (self.path / "srv/rewards.py").write_text(REWARD)
        (self.path / "etc/hosts").write_text("127.0.0.1 localhost\n")

    def start(self, *words: str) -> "subprocess.Popen[str]":
        variables = " ".join(f"{name}={value}" for name, value in ENVIRONMENT.items())
        script = f"{MOUNTS}{variables} /bin/sh -c '{INSIDE}' sh \"$@\""
        command = ["unshare", "--mount", "sh", "-c", script, str(self.path), *words]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def says(self, *words: str, code: int = 0) -> str:
        process = self.start(*words)
        said, _ = process.communicate(timeout=INSTALL_S)
        assert process.returncode == code, f"{words} ended with {process.returncode}:\n{said}"
        return said


def main(dist: Path, folder: Path) -> int:
    (wheel,) = dist.resolve().glob("echo_queue-*.whl")
    root = BareRoot(folder.resolve())
    root.install(wheel, folder)
    print(f"ok: {wheel.name} is installed in a root of its own", flush=True)
    home = folder.resolve() / "home"
    home.mkdir()
    os.environ.update(VARIABLES)
    with staged_run(home) as staged:
        refuse(root, staged)
        work(root, staged)
        trust_no_other_weights(root, staged)
    return 0


def invite(staged: StagedRun, valid_s: float = 600.0) -> Issued:
    return issue(load(staged.harness.path), "", valid_s)


def refuse(root: BareRoot, staged: StagedRun) -> None:
    """Tries every token that must be refused, and prints what is said."""
    config = load(staged.harness.path)
    trusted, forger = inviter_key(config), Signer(bytes(32), TOKEN_DOMAIN)
    other = staged.servers.folder / "other"
    other.mkdir()
    certify(other)

    def refused(what: str, token: str, words: str, *options: str) -> None:
        said = root.says("echo-queue", "join", token, "--check", *options, code=2)
        sentence = next(line for line in said.splitlines() if line.startswith("✗"))
        assert words in sentence, said
        print(f"ok: {what}: {sentence}", flush=True)

    inviter = ("--inviter", trusted.public_key)
    invitation = invite(staged).invitation
    refused("forged", write_token(invitation, forger), "was told to trust", *inviter)
    harmless = invitation.model_copy(update={"settings": invitation.settings | {"environment": {"kind": "math"}}})
    refused("forged, no key given", write_token(harmless, forger), "may not invite")
    refused("changed", write_token(invitation, trusted)[:-8] + "AAAAAAAA", "")
    wrong = invitation.model_copy(update={"authority": (other / "authority.pem").read_text()})
    refused("wrong authority", write_token(wrong, trusted), "no certificate of the invitation's authority", *inviter)
    revoked, short, used = invite(staged), invite(staged, 1.0), invite(staged)
    with connect_redis(config, "admin") as admin:
        register = Register(admin, RUN)
        register.revoke(revoked.invitation.id)
        refused("revoked", revoked.token, "was revoked", *inviter)
        wait_until(lambda: register.now_ms() >= short.invitation.expires_ms, "the end of an invitation")
    refused("expired", short.token, "expired at", *inviter)
    root.says("echo-queue", "join", used.token, "--check", *inviter)
    refused("used", used.token, "by another machine", *inviter, "--dir", "elsewhere")


def work(root: BareRoot, staged: StagedRun) -> None:
    """Lets an invited worker generate groups, and revokes its invitation."""
    issued = invite(staged)
    worker = root.start("echo-queue", "join", issued.token, "--inviter", issued.public_key)
    try:
        groups = staged.harness.drain(6)
        assert {group.worker for group in groups} == {f"{issued.invitation.id}-0"}
        with connect_redis(load(staged.harness.path), "admin") as admin:
            users = {line["user"] for line in admin.client_list() if line["user"].startswith("worker")}
            assert users == {worker_user(RUN, issued.invitation.id)}, users
            print(
                f"ok: {len(groups)} groups were leased and completed over TLS by Redis user {users.pop()}", flush=True
            )
            Register(admin, RUN).revoke(issued.invitation.id)
        said, _ = worker.communicate(timeout=COMMAND_S)
        assert worker.returncode == 2, said
        print(f"ok: revoked, it ended: {last_problem(said)}", flush=True)
    finally:
        worker.kill()
        worker.wait(COMMAND_S)


def trust_no_other_weights(root: BareRoot, staged: StagedRun) -> None:
    """Lets an invited worker find a key in Redis that is not the one in its token."""
    issued = invite(staged)
    with connect_redis(load(staged.harness.path), "admin") as admin:
        admin.hset(Keys(RUN).run_keys, "public_key", "ab" * 32)
    said = root.says("echo-queue", "join", issued.token, "--inviter", issued.public_key, code=2)
    sentence = last_problem(said)
    assert "weights.public_key" in sentence, said
    print(f"ok: weights of another key: {sentence}", flush=True)


def last_problem(said: str) -> str:
    """Returns the problem that a worker itself named, in the last lines that `join` repeats of it."""
    return [line.strip() for line in said.splitlines() if line.strip().startswith("✗")][-1]


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
