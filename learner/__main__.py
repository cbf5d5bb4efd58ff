"""`python -m learner CONFIG` runs the learner. On SIGTERM, to any rank, it finishes and checkpoints the current update.

With `learner.ranks` above 1 it starts that many processes of this program, each of which is a rank; a process that
finds torchrun's variables is a rank itself.
"""

import argparse
import logging
import os
import sys
import threading
from pathlib import Path

from echo_queue.config import Config
from echo_queue.config.loading import load
from echo_queue.errors import AGAIN, DONE, REFUSED, ConfigError, EchoQueueError, Problem, SetBackError
from echo_queue.launch import collection
from echo_queue.launch.import_path import PYTHON
from echo_queue.launch.problem_output import print_problems
from echo_queue.launch.signals import set_on_signals
from echo_queue.launch.streams import always_writable
from echo_queue.models.model_imports import spare_scipy
from echo_queue.queue import Monitor
from echo_queue.queue.dead_causes import check_end
from learner.allocator import grow_segments
from learner.ranks import launcher
from learner.ranks.place import ALONE, Place

log = logging.getLogger("learner")


def main() -> int:
    always_writable()
    parser = argparse.ArgumentParser(prog="learner", description="Trains on what the workers generate.")
    parser.add_argument("config", type=Path, help="the run's TOML file")
    arguments = parser.parse_args()
    try:
        config, place = load(arguments.config), Place.of(os.environ)
        _log_as(place)
        if place is None and config.learner.ranks > 1:
            backoff = launcher.backoff_for(config.learner.rank_deadline_s + config.queue.stall_deadline_s)
            return launcher.launch([*PYTHON, "-m", "learner", str(arguments.config)], config.learner.ranks, backoff)
        return _train(config, place or ALONE)
    except EchoQueueError as error:
        print_problems(error.problems)
        return error.exit_code


def _train(config: Config, place: Place) -> int:
    if place.size != config.learner.ranks:
        what = f"is {config.learner.ranks}, and {place.size} processes were started"
        raise ConfigError(Problem("learner.ranks", what, f"write learner.ranks = {place.size}, or start as many"))
    stop = threading.Event()
    set_on_signals(stop)
    if place.launched:
        launcher.end_with_launcher()
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # it logs each wait for a message that runs out
    grow_segments(os.environ)
    with collection.paused():
        # Imported only now: torch takes seconds.
        spare_scipy()
        from transformers.utils.logging import disable_progress_bar

        from echo_queue.weights.delta import compiled
        from learner.out_of_memory import memory_problem
        from learner.ranks.team import OtherRankError, RankLostError
        from learner.run_start import connect
        from learner.training_loop import train

        compiled.prepare()

    disable_progress_bar()
    try:
        if train(config, stop, place):
            check_end(Monitor(connect(config)))
    except OtherRankError as error:
        _print_in_lines(error)
        return REFUSED
    except RankLostError as error:
        _print_in_lines(error)
        return AGAIN
    except SetBackError as error:
        print_problems(error.problems)
        return AGAIN
    except (MemoryError, RuntimeError) as error:
        if (problem := memory_problem(error, config.learner)) is None:
            raise
        raise ConfigError(problem) from error
    return DONE


def _print_in_lines(error: EchoQueueError) -> None:
    """Prints what other ranks print, too: a line for each problem, with this rank's number."""
    for problem in error.problems:
        log.error("%s: %s", problem.where, problem.what)


def _log_as(place: Place | None) -> None:
    """Writes the log with the rank in each line, where there are several."""
    rank = f"[rank {place.rank}] " if place is not None and place.size > 1 else ""
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s {rank}%(name)s: %(message)s", datefmt="%H:%M:%S")


if __name__ == "__main__":
    sys.exit(main())
