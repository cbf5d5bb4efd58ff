"""The number of threads that code a version's pieces: one for each core that torch leaves to this rank."""

import os
from collections.abc import Mapping

from echo_queue.config import Config

RANKS_HERE = "LOCAL_WORLD_SIZE"
"""Variable that says how many ranks this machine has, as torchrun and `learner.ranks.launcher` set it."""


def coding_threads(config: Config, environ: Mapping[str, str] = os.environ) -> int:
    """Returns the number, at least 1."""
    cores = len(os.sched_getaffinity(0)) // int(environ.get(RANKS_HERE, "1"))
    return max(1, cores - config.learner_threads)
