"""A GPU that is not there: what is copied on its side stream is copied late, when something waits for it.

So whoever forgets to wait finds that the copy has missed what it was to hold.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from learner.model import device

GPU = torch.device("cuda", 0)


class StandInStream:
    """A stream that does what it was given only once an event behind it is waited for."""

    current: "StandInStream | None" = None

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
            for action in self._given:
                action()
            self._given.clear()


class StandInEvent:
    device = GPU

    def record(self) -> None:
        self._stream = StandInStream.current

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
        assert stream is StandInStream.current, "memory that the copy reads must be kept for its stream"

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
        if function is Tensor.copy_ and StandInStream.current is not None:
            room, source = (one.as_subclass(Tensor) for one in arguments[:2])
            StandInStream.current.give(lambda: room.copy_(source))
            return room
        return super().__torch_function__(function, types, arguments, options or {})  # type: ignore[no-untyped-call]


@contextmanager
def stand_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Puts the stand-ins in the place of torch's streams, events and pinned memory."""
    empty = torch.empty

    @contextmanager
    def on(stream: StandInStream) -> Iterator[None]:
        before, StandInStream.current = StandInStream.current, stream
        yield
        StandInStream.current = before

    @contextmanager
    def on_device(_device: object) -> Iterator[None]:
        yield

    def unpinned(*size: Any, pin_memory: bool = False, **options: Any) -> Tensor:
        return empty(*size, **options)

    for name, value in (("Stream", StandInStream), ("Event", StandInEvent), ("stream", on), ("device", on_device)):
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(torch.cuda, "current_stream", StandInStream)  # the training loop's, which is never behind
    monkeypatch.setattr(torch, "empty", unpinned)
    device._side_stream.cache_clear()
    yield
    device._side_stream.cache_clear()
