"""The workers of an invited machine: one on each of its GPUs, kept alive until each is done or the command is ended.

- A worker that dies is started again; one that keeps dying, or says that a person must act, ends the command with its
  last lines. One that has waited in vain for a learner ends it with exit code 4.
- Whenever the workers have ended by themselves, the command says that the machine is still paid for.
- SIGTERM, Ctrl-C and a closed terminal end all workers: they store partial rollouts and hand their tasks back.
"""

import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from rich.console import Console

from echo_queue.cli.run.placement import ENVIRONMENT, Placement
from echo_queue.config import Config
from echo_queue.errors import IDLE, IdleError
from echo_queue.launch.roles import command
from echo_queue.launch.signals import ending
from echo_queue.launch.supervisor import POLL_S, Role, RoleError, Supervisor

GRACE_MARGIN_S = 5.0
"""The time beyond its own grace that a worker has before it is killed."""
BILL = "the workers have ended; this machine goes on, as does its bill: end it (`sudo poweroff`, or at its provider)"


def work(config: Config, path: Path, placed: Sequence[Placement], environ: Mapping[str, str] = os.environ) -> None:
    """Runs the workers until all are done, or a signal asks to end. Call it in the main thread.

    Raises `RoleError` for a worker that keeps dying or cannot go on, `IdleError` for one that has waited in vain for a
    learner, or `RunningError` if they run already.
    """
    ours = {**ENVIRONMENT, **environ, "PYTHONUNBUFFERED": "1"}
    with Supervisor(config.run.dir, ours, most_refusals=1) as supervisor:
        handlers: dict[signal.Signals, Callable[[int, object], None]] = dict.fromkeys(ending(), supervisor.interrupt)
        if config.rollout.preemption.watch == "signal":
            handlers |= dict.fromkeys((signal.SIGUSR1, signal.SIGUSR2), supervisor.pass_on)
        before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
        try:
            supervisor.start(*(_role(config, path, place) for place in placed))
            _print_placements(config, placed)
            while not all(supervisor.done(place.name) for place in placed):
                supervisor.tick()
                time.sleep(POLL_S)
            _print_bill()
        except RoleError as error:
            _print_bill()
            if error.code == IDLE:
                raise IdleError(*error.problems) from error
            raise
        except KeyboardInterrupt:
            Console(stderr=True).print("stopping: the workers hand their tasks back; Ctrl-C again kills them")
        finally:
            supervisor.stop_all()
            for number, handler in before.items():
                signal.signal(number, handler)


def _role(config: Config, path: Path, place: Placement) -> Role:
    started = ("env", *place.variables(), *command("workers", path, "--name", place.name))
    return Role(place.name, started, grace_s=config.rollout.grace_s + GRACE_MARGIN_S, ends=True)


def _print_bill() -> None:
    Console(stderr=True, highlight=False, soft_wrap=True, markup=False).print(BILL)


def _print_placements(config: Config, placed: Sequence[Placement]) -> None:
    console = Console(stderr=True, highlight=False, soft_wrap=True, markup=False)
    for place in placed:
        device = f"GPU {place.device}" if place.device else "no GPU of its own"
        console.print(f"{place.name} has {device}; its log is {config.run.dir / 'logs' / place.name}.log")
