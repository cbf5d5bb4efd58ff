"""A GPU that is not there: what is copied on a stream of its own is copied late, when something waits for it.

So whoever forgets to wait finds that the copy has missed what it was to hold.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from echo_queue.weights import gpu_lanes
from learner.model import device

GPU = torch.device("cuda", 0)


class Current(threading.local):
    """The stream that each thread works on; None: the training loop's, which is never behind."""

    stream: "StandInStream | None" = None


class StandInStream:
    """A stream that does what it was given only once an event behind it is waited for."""

    current = Current()

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._given: list[Callable[[], object]] = []
        self._turn = threading.Lock()

    def give(self, action: Callable[[], object]) -> None:
        self._given.append(action)

    def wait_event(self, event: "StandInEvent") -> None:
        event.synchronize()

    def synchronize(self) -> None:
        with self._turn:
            while self._given:
                self._given.pop(0)()


class StandInEvent:
    device = GPU
    _stream: StandInStream | None = None

    def record(self, stream: StandInStream | None = None) -> None:
        self._stream = stream or StandInStream.current.stream

    def synchronize(self) -> None:
        if self._stream is not None:
            self._stream.synchronize()


class OnGpu(Tensor):
    """A tensor that says that it lies on the GPU. It shares the memory of the tensor that it is made of."""

    is_cuda = True

    @classmethod
    def of(cls, tensor: Tensor) -> "OnGpu":
        return Tensor._make_subclass(cls, tensor.detach())

    def record_stream(self, stream: Any) -> None:
        assert stream is StandInStream.current.stream, "memory that the copy reads must be kept for its stream"

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
        stream = StandInStream.current.stream
        if function is Tensor.copy_ and stream is not None:
            room, source = (one.as_subclass(Tensor) for one in arguments[:2])
            stream.give(lambda: room.copy_(source))
            return room
        return super().__torch_function__(function, types, arguments, options or {})  # type: ignore[no-untyped-call]


@contextmanager
def stand_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Puts the stand-ins in the place of torch's streams, events and pinned memory."""
    empty = torch.empty

    @contextmanager
    def on(stream: StandInStream) -> Iterator[None]:
        before, StandInStream.current.stream = StandInStream.current.stream, stream
        try:
            yield
        finally:
            StandInStream.current.stream = before

    @contextmanager
    def on_device(_device: object) -> Iterator[None]:
        yield

    def unpinned(*size: Any, pin_memory: bool = False, **options: Any) -> Tensor:
        return empty(*size, **options)

    for name, value in (("Stream", StandInStream), ("Event", StandInEvent), ("stream", on), ("device", on_device)):
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda gpu: StandInStream.current.stream or StandInStream(gpu))
    monkeypatch.setattr(torch, "empty", unpinned)
    for made in (device._side_stream, gpu_lanes._lanes):
        made.cache_clear()
    yield
    for made in (device._side_stream, gpu_lanes._lanes):
        made.cache_clear()
