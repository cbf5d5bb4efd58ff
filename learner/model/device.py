"""The device of the learner."""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Literal

import torch
from torch import Tensor

from echo_queue.errors import ConfigError, Problem


def choose(wanted: Literal["auto", "cpu", "cuda"], number: int = 0) -> torch.device:
    """Returns the configured device; `auto` takes a GPU if there is any. Raises `ConfigError` if it is missing.

    `number`: the rank's number on its machine, whose GPU of that number it takes.
    """
    if wanted == "cuda" and not torch.cuda.is_available():
        built = f"built for CUDA {torch.version.cuda}" if torch.version.cuda else "built without CUDA"
        what = f'is "cuda", but torch {torch.__version__} ({built}) finds no GPU on this machine'
        raise ConfigError(Problem("learner.device", what, 'install a CUDA build of torch, or write "auto" or "cpu"'))
    if wanted == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    if number >= (gpus := torch.cuda.device_count()):
        if gpus > 1 or "," in os.environ.get("CUDA_VISIBLE_DEVICES", ","):
            what = f"starts rank {number} of this machine, of which {gpus} GPUs are visible (CUDA_VISIBLE_DEVICES)"
            raise ConfigError(Problem("learner.ranks", what, "start at most one rank per GPU"))
        number = 0  # Slurm and its like show each process its own GPU alone
    torch.cuda.set_device(number)
    return torch.device("cuda", number)


def ready(tensors: Iterable[Tensor]) -> "torch.cuda.Event | None":
    """Returns the event after which GPU tensors, which this thread's stream computes, may be read; None for a CPU's."""
    if not any(tensor.is_cuda for tensor in tensors):
        return None
    event = torch.cuda.Event()
    event.record()
    return event


@contextmanager
def side_stream(after: "torch.cuda.Event | None") -> Iterator[None]:
    """Runs GPU work of this thread beside that of others: on a stream of its own, and only `after` that event.

    All of it has ended at the end of the block, so that memory it used may be used again. Without an event, nothing is
    done.
    """
    if after is None:
        yield
        return
    stream = torch.cuda.Stream(after.device)
    stream.wait_event(after)
    with torch.cuda.stream(stream):
        yield
    stream.synchronize()
