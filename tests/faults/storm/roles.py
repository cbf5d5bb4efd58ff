"""The roles of a storm: the real programs, as functions for a process that has all their imports behind it already.

Real are the services, Celery, the submission, the rollout loop, the learner and their entry points; `simulated`
replaces only what takes time. The learner's tensors carry a stamp (`stamps`).
"""

import logging
import os
import random
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from echo_queue import failpoints, submission
from echo_queue.config import Config, Prompts
from echo_queue.config.loading import load
from echo_queue.connections.connect import connect_store
from echo_queue.errors import DONE, HOPELESS, EchoQueueError
from echo_queue.launch.backoff import RestartBackoff
from echo_queue.launch.problem_output import print_problems
from echo_queue.launch.servers import serving
from learner.ranks import launcher
from tests.faults.crash_points.forked_process import set_process_name
from tests.faults.crash_points.forked_ranks import fork_ranks
from tests.faults.history import served_versions, stamps
from tests.faults.history.recorder import Recorder
from tests.faults.storm import fleet, prompts
from tests.faults.storm.settings import SPOTS
from tests.faults.storm.simulated import ParityScorer, SimulatedEngine
from tests.queue.clients import Clients
from workers.environments.scorer import environments_of
from workers.shutdown import Shutdown, on_signals

if TYPE_CHECKING:
    from learner.publication.publish_thread import Snapshot
    from learner.ranks.order import Order
    from learner.training_loop import TrainingLoop

    TakeSnapshot = Callable[[TrainingLoop, Order], Snapshot]

BACKLOG = 2_000
"""Prompts waiting, below which the submitter submits another set."""
REWIND_S = 8.0
CLOSING = "closing"
"""A file of this name tells the submitter that only the final set is to come."""
BACKOFF = RestartBackoff(first_pause_s=0.02, longest_pause_s=0.2, settled_s=10.0, most_ends=1_000_000)


def run_role(directory: Path, words: Sequence[str]) -> int:
    """Runs the role `words[0]` of the storm in `directory`, named by the last word; returns its exit code."""
    name, path = words[-1], directory / "run.toml"
    log_as(name)
    os.environ["ECHO_QUEUE_CONFIG"] = str(path)
    failpoints.observer = Recorder(directory / "history", name)
    try:
        return ROLES[words[0]](directory, load(path), name)
    except EchoQueueError as error:
        print_problems(error.problems)
        return 2


def log_as(name: str) -> None:
    line = f"%(asctime)s {name} %(name)s: %(message)s"
    logging.basicConfig(level=logging.INFO, format=line, datefmt="%H:%M:%S", force=True)


def services(directory: Path, config: Config, name: str) -> int:
    serving.serve(config, backoff=BACKOFF)
    return 0


def celery(directory: Path, config: Config, name: str) -> int:
    from echo_queue.submission.celery.app import build

    quiet = ("--without-gossip", "--without-mingle", "--without-heartbeat")
    build(config).worker_main(["worker", "--concurrency", "1", "--loglevel", "INFO", *quiet])
    return 0


def learner(directory: Path, config: Config, name: str) -> int:
    """Runs the learner: one process, or the real launcher and its ranks, which are forked with the same stamp."""
    from learner.__main__ import main
    from learner.training_loop import TrainingLoop

    def rank(number: int) -> int:
        set_process_name(f"{name} rank {number}")
        log_as(f"{name} rank {number}")
        return main()

    TrainingLoop._snapshot = stamped(TrainingLoop._snapshot)  # type: ignore[method-assign]
    launcher.backoff_for = lambda longest_wait_s: BACKOFF
    fork_ranks(rank)
    sys.argv = ["learner", str(directory / "run.toml")]
    code = main()
    return DONE if code == HOPELESS else code  # prompts that a storm has killed end no storm


def stamped(snapshot: "TakeSnapshot") -> "TakeSnapshot":
    """Makes every rank publish the version's stamp as one tensor more."""

    def with_stamp(loop: "TrainingLoop", order: "Order") -> "Snapshot":
        published = loop.policy.published
        loop.policy.published = lambda: stamps.on(order.version, published())  # type: ignore[method-assign]
        try:
            return snapshot(loop, order)
        finally:
            loop.policy.published = published  # type: ignore[method-assign]

    return with_stamp


def worker(directory: Path, config: Config, name: str) -> int:
    return _work(config, name, Shutdown())


def machine(directory: Path, config: Config, name: str) -> int:
    """Runs the worker of a machine of the fleet."""
    fleet.begin(directory, name, config.rollout.pool)
    return _work(config, name, fleet.MachineShutdown(directory, name, config.rollout.pool))


def _work(config: Config, name: str, shutdown: Shutdown) -> int:
    """Runs a rollout worker. The last spot worker stands behind a NAT: it takes weights from peers and feeds none."""
    from workers.worker import work

    on_signals(shutdown)
    served_versions.watch(config.run.dir)
    weights = config.weights.model_copy(update={"reachable": name != SPOTS[-1]})
    config = config.model_copy(update={"weights": weights})
    scorers = [ParityScorer(environment.kind == "interactive") for environment in environments_of(config)]
    work(config, name, scorers, shutdown, SimulatedEngine)  # type: ignore[arg-type]
    return 0


def controller(directory: Path, config: Config, name: str) -> int:
    """Runs `echo-queue fleet --act`, whose machines are forked."""
    from echo_queue.cli.plan.fleet import control
    from tests.faults.storm.forked_roles import launch_machine

    fleet.hasten(partial(launch_machine, directory))
    control(directory / "run.toml", directory / fleet.FILE, act=True, as_json=True)
    return 0


def submit(directory: Path, config: Config, name: str) -> int:
    """Submits set after set while the backlog is short, the first ones together with what is held out.

    A set that was acknowledged is never submitted again. Of several components, that gets the next set of which the
    least is left for its weight.
    """
    done = directory / "submitted"
    done.mkdir(exist_ok=True)
    queue = Clients.connected_as(config, "monitor")
    while not (directory / CLOSING).exists():
        number, wait = len(list(done.iterdir())), random.random() < 0.5  # or leave it to Celery and its reconciler
        if not number and config.mixture:
            submission.submit(config, wait=wait)
            (done / "first").touch()
        elif (component := _needy(config, queue, number)) is not None:
            submitted = prompts.write_set(directory, config.run.seed, number, component)
            _submit_set(prompts.with_set(config, submitted), submitted, alone=number > 0, wait=wait)
            (done / submitted.set).touch()
        time.sleep(0.05)
    prompts.write_rows(prompts.final_source(directory), prompts.FINAL_ROWS, 0)
    final = prompts.final_set(config, directory)
    _submit_set(prompts.with_set(config, final), final)
    return 0


def _submit_set(config: Config, submitted: Prompts, alone: bool = True, wait: bool = True) -> None:
    """Submits a set, `alone` or with all that is held out."""
    source, name = (submitted.source, submitted.set) if alone else (None, None)
    submission.submit(config, source, name, wait=wait)


def _needy(config: Config, queue: Clients, number: int) -> str | None:
    """Returns the component that needs prompts most, "" without a mixture; None if there are enough of all."""
    if number < 2:
        return config.mixture[0].name if config.mixture else ""
    status = queue.figures()
    if not status.components:
        return "" if status.backlog < BACKLOG else None
    total = sum(one.weight for one in status.components)
    left = {one.name: (one.backlog + one.missing) * total / one.weight for one in status.components}
    needy = min(left, key=left.__getitem__)
    return needy if left[needy] < BACKLOG else None


def rewinder(directory: Path, config: Config, name: str) -> int:
    """Rewinds to some checkpoint, an older one if there is any, as soon as no learner is heard.

    Gives up after a while.
    """
    from learner.recovery.rewind import choices, rewind

    queue, store = Clients.connected_as(config, "learner"), connect_store(config, "learner")
    give_up = time.monotonic() + REWIND_S
    while True:
        whole = [choice for choice in choices(store) if choice.whole]
        chosen = random.choice([choice for choice in whole if choice.after] or whole)
        try:
            print("back by", rewind(queue.learner(), queue, store, chosen.manifest.name), "groups", flush=True)
            return 0
        except EchoQueueError:
            if time.monotonic() > give_up:
                raise
        time.sleep(0.1)


ROLES: dict[str, Callable[[Path, Config, str], int]] = {
    "services": services,
    "celery": celery,
    "submit": submit,
    "worker": worker,
    "machine": machine,
    "controller": controller,
    "learner": learner,
    "rewinder": rewinder,
}
