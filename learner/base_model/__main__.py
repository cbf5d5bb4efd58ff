"""`python -m learner.base_model CONFIG` makes the base model of a run, unless it exists."""

import argparse
import os
import sys
from pathlib import Path

from echo_queue.config.loading import load
from echo_queue.errors import EchoQueueError
from echo_queue.launch.problem_output import print_problems
from echo_queue.launch.streams import always_writable
from learner.base_model import make


def main() -> int:
    always_writable()
    parser = argparse.ArgumentParser(prog="learner.base_model", description="Makes the base model of a run.")
    parser.add_argument("config", type=Path, help="the run's TOML file")
    arguments = parser.parse_args()
    # Torch reads this when it is loaded. Threads that spin would take the cores from services that are starting.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        make(load(arguments.config), say=lambda line: print(line, flush=True))
    except EchoQueueError as error:
        print_problems(error.problems)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
