"""`python -m learner CONFIG` runs the learner. On SIGTERM it finishes and checkpoints the current update."""

import argparse
import logging
import sys
import threading
from pathlib import Path

from echo_queue.config.loading import load
from echo_queue.errors import EchoQueueError, SetBackError
from echo_queue.launch.problem_output import print_problems
from echo_queue.launch.signals import set_on_signals

AGAIN = 1
"""Exit code that asks the supervisor to start the learner again; 2 says that a person must act."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="learner", description="Trains on what the workers generate.")
    parser.add_argument("config", type=Path, help="the run's TOML file")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s", datefmt="%H:%M:%S")
    stop = threading.Event()
    set_on_signals(stop)
    try:
        config = load(arguments.config)
        # Imported only now: torch takes seconds.
        from transformers.utils.logging import disable_progress_bar

        from learner.training_loop import train

        disable_progress_bar()
        train(config, stop)
    except SetBackError as error:
        print_problems(error.problems)
        return AGAIN
    except EchoQueueError as error:
        print_problems(error.problems)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
