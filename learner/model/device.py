"""The device of the learner."""

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Literal

import torch
from torch import Tensor

from echo_queue.errors import ConfigError, Problem
from echo_queue.weights.gpu_streams import on_stream
from echo_queue.weights.host_memory import fill
from learner.ranks.place import ALONE, Place


def choose(wanted: Literal["auto", "cpu", "cuda"], place: Place = ALONE) -> torch.device:
    """Returns the configured device; `auto` takes a GPU if there is any. Raises `ConfigError` if it is missing.

    `place`: the rank's, whose number on its machine is that of the GPU that it takes.
    """
    if wanted == "cuda" and not torch.cuda.is_available():
        built = f"built for CUDA {torch.version.cuda}" if torch.version.cuda else "built without CUDA"
        what = f'is "cuda", but torch {torch.__version__} ({built}) finds no GPU on this machine'
        raise ConfigError(Problem("learner.device", what, 'install a CUDA build of torch, or write "auto" or "cpu"'))
    if wanted == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    number = place.local
    if number >= (gpus := torch.cuda.device_count()):
        if gpus > 1 or place.launched or "," in os.environ.get("CUDA_VISIBLE_DEVICES", ","):
            what = f"starts rank {number} of this machine, of which {gpus} GPUs are visible (CUDA_VISIBLE_DEVICES)"
            raise ConfigError(Problem("learner.ranks", what, "start at most one rank per GPU"))
        number = 0  # Slurm and its like show each process its own GPU alone; our launcher shows all of them the same
    torch.cuda.set_device(number)
    return torch.device("cuda", number)


def compute_deterministically() -> None:
    """Makes this process compute what it computes again with the same bits, on GPUs as well (`learner.deterministic`).

    It must be called before CUDA starts, which reads the variable. Where torch has no such algorithm for an operation,
    the operation raises an error that names it.
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    # Nothing here reads memory that was not written.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def ready(tensors: Iterable[Tensor]) -> "torch.cuda.Event | None":
    """Returns the event after which GPU tensors, which this thread's stream computes, may be read; None for a CPU's."""
    if not any(tensor.is_cuda for tensor in tensors):
        return None
    event = torch.cuda.Event()
    event.record()
    return event


@contextmanager
def side_stream(after: "torch.cuda.Event | None") -> Iterator[None]:
    """Runs GPU work of this thread beside the training loop's: on the side stream of its GPU, and only `after` that
    event.

    All of it has ended at the end of the block, so that memory it used may be used again. Without an event, nothing is
    done.
    """
    if after is None:
        yield
        return
    stream = _side_stream(after.device)
    stream.wait_event(after)
    with on_stream(stream):
        yield
        stream.synchronize()


def copy_beside(rooms: Sequence[Tensor], tensors: Sequence[Tensor]) -> "torch.cuda.Event | None":
    """Begins to copy each tensor into its room, of the same type in host memory, on the side stream of their GPU.

    Returns the event after which the copies are complete and the tensors may change. None: they are complete, as those
    of a CPU's tensors are.
    """
    began = ready(tensors)
    if began is None:
        fill(rooms, tensors)
        return None
    stream = _side_stream(began.device)
    stream.wait_event(began)
    with on_stream(stream):
        for room, tensor in zip(rooms, tensors, strict=True):
            room.copy_(tensor.detach(), non_blocking=True)
            if tensor.is_cuda:
                tensor.record_stream(stream)  # its memory is given to nobody else before the copy has ended
        return ready(tensors)


@cache
def _side_stream(device: torch.device) -> "torch.cuda.Stream":
    """Returns the one side stream of a GPU. Torch keeps memory that was freed for the stream that used it, so each
    further stream would keep memory of its own.
    """
    return torch.cuda.Stream(device)
