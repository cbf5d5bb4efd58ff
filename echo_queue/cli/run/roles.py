"""The roles that `echo-queue run` starts on this machine, each with its program and the way in which it ends."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from echo_queue.cli.run.placement import of_run
from echo_queue.config import Config
from echo_queue.connections.endpoints import EMBEDDED
from echo_queue.launch.import_path import PYTHON
from echo_queue.launch.roles import command
from echo_queue.launch.supervisor import Role

ECHO_QUEUE = (*PYTHON, "-m", "echo_queue.cli")
CELERYS = "CELERY_"
"""Begins the variables that Celery takes for options of its program, and those that a user has for his own ones."""


def services(config: Config, path: Path) -> Iterator[Role]:
    """Yields the role that keeps the embedded servers, unless both services are external."""
    if EMBEDDED in (config.redis.url, config.store.url):
        yield Role("services", (*ECHO_QUEUE, "services", str(path), "--within-run"), grace_s=20.0, servers=True)


def base_model(path: Path) -> Role:
    """Returns the role that makes the base model `init`, and ends."""
    return Role("init-model", tuple(command("learner.base_model", path)), ends=True)


def celery(config: Config) -> Role:
    """Returns one Celery worker; its child processes are in its process group and end with it."""
    options = ("--concurrency", str(config.submission.processes), "--loglevel", "INFO")
    quiet = ("--without-gossip", "--without-mingle", "--without-heartbeat")
    without = [word for name in os.environ if name.startswith(CELERYS) for word in ("-u", name)]
    program = (*PYTHON, "-m", "celery", "-A", "echo_queue.submission", "worker", *options, *quiet)
    return Role("celery", (*(("env", *without) if without else ()), *program))


def submission(config: Config, path: Path) -> Role:
    """Returns the role that submits the configured prompts, and ends."""
    return Role("submit", (*ECHO_QUEUE, "submit", str(path), "--within-run"), ends=True)


def workers(config: Config, path: Path) -> Iterator[Role]:
    """Yields the rollout workers, each on its own GPU where there are enough, and with a port of its own."""
    for place in of_run(config):
        variables = tuple(place.variables())
        program = (*(("env", *variables) if variables else ()), *command("workers", path, "--name", place.name))
        yield Role(place.name, program, grace_s=config.rollout.grace_s + 5, ends=True)


def learner(path: Path, is_done: Callable[[], bool]) -> Role:
    """Returns the learner. A signal to it alone ends it with 0 as well, though the run is not done."""
    return Role("learner", tuple(command("learner", path)), grace_s=60.0, ends=True, is_done=is_done)
