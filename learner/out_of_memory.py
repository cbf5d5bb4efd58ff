"""Says what to do when the learner's device, or its host, has no room for what it computes."""

import re

import torch

from echo_queue import config
from echo_queue.errors import Problem

FULL_HOST = re.compile(r"DefaultCPUAllocator: (not enough memory|can't allocate memory)|CUDA error: out of memory")
"""Torch has no class of its own for memory of the host: neither for its own, nor for that pinned by CUDA's driver."""
CHECKPOINTING = ("none", "selective", "full")
"""The kinds of activation checkpointing, each of which keeps less than the one before."""


def memory_problem(error: Exception, settings: config.Learner) -> Problem | None:
    """Returns what to do about an error that memory which ran out has raised; None for any other error."""
    if isinstance(error, torch.OutOfMemoryError):
        where = "the GPU"
    elif isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and FULL_HOST.search(str(error))):
        where = "this machine"
    else:
        return None
    said = next(iter(str(error).splitlines()), "") or type(error).__name__
    what = f"{where} has no memory left for the learner: {said}"
    return Problem("learner", what, _fix(settings, on_gpu=where == "the GPU"))


def _fix(settings: config.Learner, *, on_gpu: bool) -> str:
    """Names the keys that take less memory than now, the cheapest first."""
    ways = []
    if less := CHECKPOINTING[CHECKPOINTING.index(settings.activation_checkpointing) + 1 :]:
        ways.append("learner.activation_checkpointing = " + " or ".join(f'"{kind}"' for kind in less))
    ways.append(f"learner.micro_tokens below {settings.micro_tokens}")
    if on_gpu and not settings.offload:
        ways.append("learner.offload = true")
    return f"write {', or '.join(ways)}; echo-queue estimate says what fits; a restart continues from the checkpoint"
