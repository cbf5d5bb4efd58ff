"""Lets several threads read what lies on a GPU: each through a lane, a stream and pinned memory that it has to itself.

- Into pinned memory a GPU copies at the speed of the link, and beside the copies and the work of other lanes.
- A lane is made once and lent again and again, each time after all that it was given to do has ended. So no memory is
  used again that one of its copies still reads or writes.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache, partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, TypeAlias

from echo_queue.weights.delta.codes import Codes, on_host
from echo_queue.weights.gpu_streams import on_stream
from echo_queue.weights.manifest import PIECE_BYTES

if TYPE_CHECKING:
    import torch
    from torch import Tensor

Read: TypeAlias = "Callable[[Tensor], Codes]"
"""Returns the codes of `flat` integers, of one piece at most. They hold until the next call."""


def reading(rows: "Iterable[Tensor]") -> Callable[[], AbstractContextManager[Read]]:
    """Returns what lends the thread that calls it a way to read rows such as these.

    If one of `rows` is on a GPU, the thread works on a stream of its own meanwhile, after all that the stream of the
    thread that called `reading` was given before. Otherwise codes are views.
    """
    gpu = next((row.device for row in rows if row.is_cuda), None)
    if gpu is None:
        return lambda: nullcontext(on_host)
    import torch

    written = torch.cuda.Event()
    written.record(torch.cuda.current_stream(gpu))
    return partial(_lanes(gpu).lend, written)


class Lane:
    """A stream of a GPU, with pinned memory for one piece."""

    def __init__(self, gpu: "torch.device") -> None:
        import torch

        with torch.cuda.device(gpu):
            self.stream = torch.cuda.Stream(gpu)
            self._room = torch.empty(PIECE_BYTES, dtype=torch.uint8, pin_memory=True)

    def read(self, row: "Tensor") -> Codes:
        """Is a `Read`. The row may be on the CPU as well."""
        if not row.is_cuda:
            return on_host(row)
        room = self._room[: row.nbytes].view(row.dtype)
        room.copy_(row, non_blocking=True)
        self.stream.synchronize()
        return on_host(room)


class Lanes:
    """The lanes of a GPU: as many as were ever lent at a time."""

    def __init__(self, gpu: "torch.device") -> None:
        self._gpu, self._free = gpu, SimpleQueue[Lane]()

    @contextmanager
    def lend(self, after: "torch.cuda.Event") -> Iterator[Read]:
        """Lends the calling thread a lane, on whose stream it works `after` that event until the end of the block."""
        try:
            lane = self._free.get_nowait()
        except Empty:
            lane = Lane(self._gpu)
        try:
            with on_stream(lane.stream):
                lane.stream.wait_event(after)
                yield lane.read
        finally:
            lane.stream.synchronize()
            self._free.put(lane)


@cache
def _lanes(gpu: "torch.device") -> Lanes:
    """Returns the lanes of a GPU, for all threads of this process."""
    return Lanes(gpu)
