"""The processes of each role. A case starts one, lets it die at a crash point, and starts the next.

The programs are the real ones, below their command lines. Where they would start a Python of their own (the scorer),
they fork instead, and generation is a small real model's: a process costs a fraction of a second.
"""

import logging
import os
import socket
import subprocess
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch

from echo_queue import failpoints
from echo_queue.config import Config
from echo_queue.connections.storage.object_store import ObjectStore
from echo_queue.errors import EchoQueueError, HopelessError
from echo_queue.launch.backoff import RestartBackoff
from echo_queue.launch.servers import serve
from echo_queue.launch.signals import set_on_signals
from echo_queue.launch.supervisor import Role, Supervisor
from echo_queue.submission import submit
from echo_queue.submission.celery.app import build
from learner.__main__ import _train
from learner.base_model import make
from learner.ranks import launcher as ranks_launcher
from learner.ranks.place import ALONE, Place
from learner.recovery import archive, rewind
from learner.training_loop import train
from tests.faults.crash_points import rank_crashes
from tests.faults.crash_points.forked_process import Forked
from tests.faults.crash_points.forked_ranks import fork_ranks
from tests.faults.history import served_versions
from workers import leaser
from workers.environments import child
from workers.environments import scorer as scorer_module
from workers.environments.keeper import keep
from workers.environments.process import EnvironmentProcess
from workers.shutdown import Shutdown, on_signals
from workers.worker import work

REFUSED, NEVER = 2, 10**9
QUIET = ("--without-gossip", "--without-mingle", "--without-heartbeat", "--loglevel", "WARNING")


class StepObserver:
    """Writes every step that was taken to a file, at once, and ends the process where it is to die."""

    def __init__(self, record: Path | None, crash_at: str) -> None:
        self._file = None if record is None else os.open(record, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._point = failpoints.CrashPoint(crash_at) if crash_at else None

    def before(self, step: str, about: object) -> None:
        pass

    def after(self, step: str, about: object, answer: object) -> None:
        if self._file is not None:
            os.write(self._file, f"{step}\n".encode())
        if self._point is not None:
            self._point.after(step, about, answer)


def run(role: str, about: Any, log: Path, observer: failpoints.Observer) -> None:
    """Runs in a process of its own. Exit codes as of the roles' programs."""
    os.setpgid(0, 0)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s {role} %(name)s: %(message)s", force=True)
    failpoints.observer = observer
    try:
        ROLES[role](about)
    except EchoQueueError as error:
        print(error, flush=True)
        os._exit(REFUSED)


def submitter(about: tuple[Config, str]) -> None:
    config, name = about
    prompts = config.prompts.model_copy(update={"set": name})
    submit(config.model_copy(update={"prompts": prompts}), within_run=True)


def celery(config: Config) -> None:
    build(config).worker_main(["worker", "--pool", "solo", *QUIET])


def worker(config: Config, name: str = "w1") -> None:
    shutdown = Shutdown()
    on_signals(shutdown)
    leaser.IDLE_S = 0.05  # no event tells of a task that came back
    scorer_module.EnvironmentProcess = ForkedProcess  # type: ignore[misc]
    scorers = [scorer_module.Scorer(environment) for environment in scorer_module.environments_of(config)]
    served_versions.watch(config.run.dir)
    try:
        work(config, name, scorers, shutdown)
    finally:
        for scorer in scorers:
            scorer.close()


def learner(config: Config, place: Place = ALONE) -> None:
    torch.set_num_threads(1)
    archive.MANIFESTS = 1  # so that a few checkpoints come to every step
    stop = threading.Event()
    set_on_signals(stop)
    train(config, stop, place)


def learner_of_s3(config: Config) -> None:
    """A learner whose store claims to heed `If-None-Match`, as S3 does; rclone accepts the header and ignores it."""
    ObjectStore.puts_once = property(lambda _: True)  # type: ignore[assignment,method-assign]
    learner(config)


def learner_of_ranks(config: Config) -> None:
    """Rank 0 of two; the other one is a fork of it, which never dies at a crash point."""
    config = config.model_copy(update={"learner": config.learner.model_copy(update={"ranks": 2})})
    with socket.create_server((ranks_launcher.LOOPBACK, 0)) as listener:
        pid = os.fork()
        rank = 0 if pid else 1
        os.environ.update(ranks_launcher.variables(rank, 2, listener, os.environ))
        if rank == 0:
            learner(config, Place(0, 2, 0))
            assert os.waitpid(pid, 0) == (pid, 0), "rank 1 failed"
            return
        failpoints.observer, code = None, 1
        try:
            learner(config, Place(1, 2, 1))
            code = 0
        finally:
            os._exit(code)


def learner_that_crashes(about: tuple[Config, Path]) -> None:
    """The real launcher, and ranks that die as it is planned."""
    config, directory = about

    def rank(number: int) -> int:
        rank_crashes.arm(directory, number)
        try:
            return _train(config, Place(number, config.learner.ranks, number, launched=True))
        except HopelessError as error:
            return error.exit_code

    fork_ranks(rank)
    backoff = RestartBackoff(first_pause_s=0.02, longest_pause_s=0.02, settled_s=1.0, most_ends=NEVER)
    raise SystemExit(ranks_launcher.launch([], config.learner.ranks, backoff))


def launcher(directory: Path) -> None:
    """Rank 0 ends at once; the other one ends with the launcher, as each rank does, or is killed by it."""
    ranks_launcher.CLOSE_S = 0.2
    rank = f'echo $$ >> {directory}/pids; if [ "$RANK" = 0 ]; then touch {directory}/over; else exec cat; fi'
    raise SystemExit(ranks_launcher.launch(["/bin/sh", "-c", rank], 2, ranks_launcher.backoff_for(1.0)))


def operator(about: tuple[Config, str]) -> None:
    """Rewinds a run, as an operator does; the learner counts as silent for long enough."""
    rewind.SILENT_MS = 0
    rewind._act(*about)


def operator_of_s3(about: tuple[Config, str]) -> None:
    ObjectStore.puts_once = property(lambda _: True)  # type: ignore[assignment,method-assign]
    operator(about)


def services(config: Config) -> None:
    serve(config)


def base_model(config: Config) -> None:
    make(config, say=partial(print, flush=True))


def supervisor(directory: Path) -> None:
    """A server, and a role that ends: what `echo-queue run` keeps, but for what they do."""
    note_pid = f"echo $$ >> {directory}/pids"
    with Supervisor(directory, lock_deadline_s=30.0) as roles:
        roles.start(Role("server", ("/bin/sh", "-c", f"{note_pid}; exec sleep 600"), servers=True))
        roles.start(Role("ends", ("/bin/sh", "-c", f"{note_pid}; sleep 0.02"), ends=True))
        roles.wait(lambda: roles.done("ends"), 60.0, "the role that ends")
        (directory / "over").touch()


def reward(completions: list[str], kind: list[str], directory: list[str], **_: object) -> list[float]:
    """An environment: `slow` lets the test know and waits for it, `poison` always raises."""
    if kind[0] == "poison":
        raise RuntimeError("poison")
    if kind[0] == "slow":
        Path(directory[0], "scoring").touch()
        give_up = time.monotonic() + 20
        while not Path(directory[0], "go").exists() and time.monotonic() < give_up:
            time.sleep(0.005)
    return [float(place) for place in range(len(completions))]


class ForkedProcess(EnvironmentProcess):
    """The real process of an environment, without an interpreter of its own."""

    def _spawn(self, kept: socket.socket, connection: socket.socket) -> "subprocess.Popen[bytes]":
        pid = os.fork()
        if pid == 0:
            failpoints.observer = None
            self._life.close()
            keep(kept.detach(), connection.fileno())
            child.main(str(connection.detach()), self.config.model_dump_json())
            os._exit(0)
        return Forked(pid)  # type: ignore[return-value]


ROLES = {
    "submitter": submitter,
    "celery": celery,
    "worker": worker,
    "second worker": partial(worker, name="w2"),
    "learner": learner,
    "learner of S3": learner_of_s3,
    "learner of ranks": learner_of_ranks,
    "learner whose ranks crash": learner_that_crashes,
    "launcher": launcher,
    "operator": operator,
    "operator of S3": operator_of_s3,
    "services": services,
    "base model": base_model,
    "supervisor": supervisor,
}
