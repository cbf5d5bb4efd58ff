"""Commands of the machine: they run with a deadline, and a missing one is named with the package that has it."""

import os
import shutil
import subprocess
from collections.abc import Sequence
from contextlib import suppress

from echo_queue.errors import EchoQueueError, Problem, ServiceError
from echo_queue.launch.servers.redis_server import find_program as find_redis
from echo_queue.launch.servers.s3_server import find_program as find_rclone

COMMAND_S = 20.0
PACKAGES = {"ip": "iproute2", "tc": "iproute2", "iperf3": "iperf3", "setpriv": "util-linux"}
"""The Debian package of each program."""
PROBE = "eqlab-probe"


class CommandError(EchoQueueError):
    """A command of the machine failed or missed its deadline."""


def run(*words: str, timeout_s: float = COMMAND_S) -> str:
    """Runs a command and returns its output. Raises `CommandError`."""
    line = " ".join(words)
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired:
        raise CommandError(Problem(line, f"has not ended within {timeout_s:g} s", "run it by hand")) from None
    if done.returncode:
        what = (done.stderr or done.stdout).strip() or f"exit code {done.returncode}"
        raise CommandError(Problem(line, what, "run it by hand"))
    return done.stdout


def missing() -> list[str]:
    """Returns the reasons why the laboratory cannot be built here; none if it can."""
    reasons = [] if os.geteuid() == 0 else ["network namespaces need root: run it with sudo"]
    absent = sorted({package for program, package in PACKAGES.items() if shutil.which(program) is None})
    if absent:
        reasons.append(f"install {', '.join(absent)}: apt-get install {' '.join(absent)}")
    for find in (find_rclone, lambda: find_redis(None)):
        try:
            find()
        except ServiceError as error:
            reasons += [f"{problem.what}: {problem.fix}" for problem in error.problems]
    return reasons or _refusals()


def _refusals() -> list[str]:
    """Returns what the kernel, or a container around this process, does not permit root to do."""
    tries: Sequence[Sequence[str]] = (
        ("ip", "netns", "add", PROBE),
        ("ip", "-n", PROBE, "link", "add", "bridge", "type", "bridge"),
        ("ip", "-n", PROBE, "link", "add", "left", "type", "veth", "peer", "name", "right"),
        (
            "tc",
            "-n",
            PROBE,
            "qdisc",
            "add",
            "dev",
            "left",
            "root",
            "tbf",
            "rate",
            "1mbit",
            "burst",
            "9k",
            "limit",
            "9k",
        ),
    )
    with suppress(CommandError):
        run("ip", "netns", "del", PROBE)
    try:
        for words in tries:
            run(*words)
    except CommandError as error:
        return [f"{problem.where}: {problem.what}" for problem in error.problems]
    finally:
        with suppress(CommandError):
            run("ip", "netns", "del", PROBE)
    return []
