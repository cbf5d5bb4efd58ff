"""Copies weights from ordinary host memory to a GPU, at about the speed of the link.

CUDA copies ordinary memory with one thread, through small pieces of pinned memory of its own, at a fraction of that
speed. Here a few threads fill blocks of pinned memory, while the GPU copies those that are full. So a stage need not be
pinned itself, which would take seconds and lock as much memory as the model has.
"""

from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from queue import Empty, SimpleQueue
from typing import TypeAlias

import torch
from torch import Tensor

from echo_queue.weights.delta.codes import flat
from echo_queue.weights.gpu_streams import on_stream

BLOCK_BYTES = 16 << 20
THREADS = 4
"""Each fills a block of its own: a link is about as fast as four cores copy, whatever threads torch may use."""


Pair: TypeAlias = tuple[Tensor, Tensor]
"""A weight of an engine, and the tensor whose values it is to have."""


def pairs_by_place(weights: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> tuple[list[Pair], list[Pair]]:
    """Returns the pairs whose weight is on a GPU and all others. A weight with several names is in one pair."""
    pairs = {id(weights[name]): (weights[name], tensor) for name, tensor in tensors.items()}.values()
    return [pair for pair in pairs if pair[0].is_cuda], [pair for pair in pairs if not pair[0].is_cuda]


class GpuCopies:
    """The blocks for copies to one GPU, made by the first copy and used by each later one."""

    def __init__(self) -> None:
        self._free = SimpleQueue[_Block]()

    def to_gpu(self, pairs: Collection[Pair]) -> None:
        """Copies, of each pair, the second tensor into the first, which is on the GPU and has its type and shape.

        The calling thread's stream does it, after all that it was given before. It is complete at the end.
        """
        if not pairs:
            return
        stream = torch.cuda.current_stream(next(iter(pairs))[0].device)

        def carry(stretch: Pair) -> None:
            with on_stream(stream), torch.no_grad():
                self._carry(*stretch)

        with ThreadPoolExecutor(THREADS, "copying") as pool:
            for _ in pool.map(carry, _stretches(pairs)):
                """The iteration raises a copy's error."""
        stream.synchronize()

    def _carry(self, target: Tensor, source: Tensor) -> None:
        try:
            block = self._free.get_nowait()
        except Empty:
            block = _Block()
        block.carry(target, source)
        self._free.put(block)


class _Block:
    """Pinned memory, and the event after which it may be written to again."""

    def __init__(self) -> None:
        self._room, self._read = torch.empty(BLOCK_BYTES, dtype=torch.uint8, pin_memory=True), torch.cuda.Event()

    def carry(self, target: Tensor, source: Tensor) -> None:
        """Begins to copy the source, of at most `BLOCK_BYTES`, on the stream of this thread."""
        self._read.synchronize()
        room = self._room[: source.nbytes].view(source.dtype)
        room.copy_(source)
        target.copy_(room, non_blocking=True)
        self._read.record()


def _stretches(pairs: Collection[Pair]) -> Iterator[Pair]:
    """Cuts pairs into rows of at most a block's bytes, but for targets whose elements lie in another order."""
    for target, source in pairs:
        if not target.is_contiguous():
            target.detach().copy_(source)
            continue
        there, here = flat(target), flat(source)
        step = BLOCK_BYTES // here.element_size()
        yield from zip(there.split(step), here.split(step), strict=True)
