"""The number of threads that code a version's pieces: one for each core that torch leaves to this rank, few
beside a GPU."""

import os
from collections.abc import Mapping

import torch

from echo_queue.config import Config

RANKS_HERE = "LOCAL_WORLD_SIZE"
"""Variable that says how many ranks this machine has, as torchrun and `learner.ranks.launcher` set it."""
MOST_BESIDE_A_GPU = 4
"""A thread holds the interpreter for a tenth of a piece of a delta: 0.3 of 3 ms on this project's machine. The loop,
which launches a GPU's kernels, needs the interpreter too, and a dozen threads would leave it none while they code."""


def coding_threads(config: Config, environ: Mapping[str, str] = os.environ) -> int:
    """Returns the number for the configured learner, at least 1."""
    on_gpu = config.learner.device != "cpu" and torch.cuda.is_available()
    return threads_beside(config.learner_threads, on_gpu=on_gpu, environ=environ)


def threads_beside(learner_threads: int, *, on_gpu: bool, environ: Mapping[str, str] = os.environ) -> int:
    """Returns the number beside a loop for which torch has `learner_threads`, at least 1."""
    cores = len(os.sched_getaffinity(0)) // int(environ.get(RANKS_HERE, "1"))
    free = max(1, cores - learner_threads)
    return min(free, MOST_BESIDE_A_GPU) if on_gpu else free
