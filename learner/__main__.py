"""`python -m learner CONFIG`: the learner of a run. SIGTERM: the current update is finished and checkpointed."""

import argparse
import logging
import signal
import sys
import threading
from pathlib import Path

from echo_queue.config.loading import load
from echo_queue.errors import EchoQueueError, SetBackError
from echo_queue.launch.problems import print_problems

AGAIN = 1
"""Exit code that asks to be started again; 2 says that somebody must act."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="learner", description="Trains on what the workers generate.")
    parser.add_argument("config", type=Path, help="the run's TOML file")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s", datefmt="%H:%M:%S")
    leaving = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: leaving.set())
    try:
        config = load(arguments.config)
        from transformers.utils.logging import disable_progress_bar  # only now: torch takes seconds to import

        from learner.train import train

        disable_progress_bar()
        train(config, leaving)
    except SetBackError as error:
        print_problems(error.problems)
        return AGAIN
    except EchoQueueError as error:
        print_problems(error.problems)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
