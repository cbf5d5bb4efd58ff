"""`python -m workers CONFIG [--name NAME]` runs one rollout worker until the run is finished.

On SIGTERM, Ctrl-C or a spot notice the worker stores its partial rollouts, hands its tasks back, and exits with 0.
"""

import argparse
import logging
import os
import re
import secrets
import socket
import sys
from pathlib import Path

from echo_queue.config import Config
from echo_queue.config.loading import load
from echo_queue.errors import EchoQueueError
from echo_queue.launch import collection
from echo_queue.launch.problem_output import print_problems
from echo_queue.launch.streams import always_writable
from echo_queue.models.model_imports import spare_scipy
from workers.preemption import watch
from workers.shutdown import Shutdown, on_signals


def main() -> int:
    always_writable()
    parser = argparse.ArgumentParser(
        prog="workers",
        description="A rollout worker: leases tasks, generates and scores their samples, and completes their groups.",
    )
    parser.add_argument("config", type=Path, help="the run's TOML file")
    parser.add_argument("--name", default=_name(), help="default: host and process id")
    arguments = parser.parse_args()
    name = re.sub(r"[^A-Za-z0-9_.-]", "-", arguments.name)
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s {name} %(name)s: %(message)s", datefmt="%H:%M:%S")
    shutdown = Shutdown()
    on_signals(shutdown)
    try:
        start(load(arguments.config), name, shutdown)
    except EchoQueueError as error:
        print_problems(error.problems)
        return error.exit_code
    return 0


def _name() -> str:
    """Returns a name that no other worker has: in a container the id is 1, and containers may share a host's name."""
    process = os.getpid()
    return f"{socket.gethostname()}-{process if process > 1 else secrets.token_hex(4)}"


def start(config: Config, name: str, shutdown: Shutdown) -> None:
    """Runs a worker until the run is finished or `shutdown` is set. Raises `EchoQueueError`."""
    from workers.environments.scorer import Scorer, environments_of

    watch(config.rollout.preemption, shutdown)
    scorers = [Scorer(one) for one in environments_of(config)]  # their processes start while torch is imported
    try:
        with collection.paused():
            if config.rollout.engine == "transformers":
                spare_scipy()
            from echo_queue.weights.delta import compiled
            from workers.worker import work

            compiled.prepare()

        work(config, name, scorers, shutdown)
    finally:
        for scorer in scorers:
            scorer.close()


if __name__ == "__main__":
    sys.exit(main())
