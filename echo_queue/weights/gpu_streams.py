"""Streams of GPUs, on which threads work beside one another."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@contextmanager
def on_stream(stream: "torch.cuda.Stream") -> Iterator[None]:
    """Makes this thread work on `stream`, and on its GPU.

    Each thread begins with GPU 0 as its current one. Unless the stream's own is made that first, torch goes back to GPU
    0 at the end, and so allocates memory there for a rank that computes on another.
    """
    import torch

    with torch.cuda.device(stream.device), torch.cuda.stream(stream):
        yield
