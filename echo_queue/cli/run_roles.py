"""The roles that `echo-queue run` starts on this machine, each with its program and the way in which it ends."""

import sys
from collections.abc import Iterator
from pathlib import Path

from echo_queue.cli.placement import of_run
from echo_queue.config import Config
from echo_queue.connections.endpoints import EMBEDDED
from echo_queue.launch.roles import command
from echo_queue.launch.supervisor import Role

ECHO_QUEUE = (sys.executable, "-m", "echo_queue.cli")


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
    return Role("celery", (sys.executable, "-m", "celery", "-A", "echo_queue.submission", "worker", *options, *quiet))


def submission(config: Config, path: Path) -> Role:
    """Returns the role that submits the configured prompts, and ends."""
    return Role("submit", (*ECHO_QUEUE, "submit", str(path), "--within-run"), ends=True)


def workers(config: Config, path: Path) -> Iterator[Role]:
    """Yields the rollout workers, each on its own GPU where there are enough, and with a port of its own."""
    for place in of_run(config):
        variables = tuple(place.variables())
        program = (*(("env", *variables) if variables else ()), *command("workers", path, "--name", place.name))
        yield Role(place.name, program, grace_s=config.rollout.grace_s + 5, ends=True, forked=not variables)


def learner(path: Path) -> Role:
    """Returns the learner."""
    return Role("learner", tuple(command("learner", path)), grace_s=60.0, ends=True, forked=True)


def forks(config: Config) -> bool:
    """Returns whether learner and workers import the same packages; vLLM starts processes in ways of its own."""
    return config.rollout.engine == "transformers"
