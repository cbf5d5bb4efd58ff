"""Which device a rank takes, and how it works there; GPUs are stand-ins."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from echo_queue.errors import ConfigError
from echo_queue.weights import gpu_streams
from learner import training_loop
from learner.model import device
from learner.ranks.place import Place
from tests.models import config

GPU = torch.device("cuda", 1)


class Stream:
    """A stream of a GPU that is not there."""

    made: list["Stream"]

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.made.append(self)

    def wait_event(self, event: "Event") -> None:
        pass

    def synchronize(self) -> None:
        pass


class Event:
    device = GPU


@pytest.fixture
def contexts(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What is entered and left of torch's contexts, in order."""
    seen: list[str] = []

    def context(kind: str) -> Any:
        @contextmanager
        def entered(_what: object) -> Iterator[None]:
            seen.append(f"enter {kind}")
            yield
            seen.append(f"leave {kind}")

        return entered

    Stream.made = []
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    for kind in ("device", "stream"):
        monkeypatch.setattr(torch.cuda, kind, context(kind))
    device._side_stream.cache_clear()
    yield seen
    device._side_stream.cache_clear()


def gpus(monkeypatch: pytest.MonkeyPatch, count: int, visible: str | None) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.setattr(torch.cuda, "set_device", lambda _number: None)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)


def test_a_rank_takes_the_gpu_of_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus(monkeypatch, 2, None)
    assert device.choose("auto") == torch.device("cuda", 0)
    assert device.choose("cuda", Place(5, 8, 1)) == torch.device("cuda", 1)
    with pytest.raises(ConfigError, match="starts rank 2 of this machine, of which 2 GPUs are visible"):
        device.choose("auto", Place(6, 8, 2))


def test_only_a_rank_of_another_launcher_may_see_one_gpu_as_number_0(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks that our launcher starts share their environment, and so the one GPU that is visible there."""
    gpus(monkeypatch, 1, "3")
    assert device.choose("auto", Place(1, 2, 1)) == torch.device("cuda", 0)
    with pytest.raises(ConfigError, match="starts rank 1 of this machine, of which 1 GPUs are visible"):
        device.choose("auto", Place(1, 2, 1, launched=True))


def test_a_thread_leaves_the_stream_before_its_gpu(contexts: list[str]) -> None:
    """Torch goes back to the stream of the current GPU, which must still be the stream's own."""
    order = ["enter device", "enter stream", "leave stream", "leave device"]
    with gpu_streams.on_stream(Stream(GPU)):  # type: ignore[arg-type]
        pass
    assert contexts == order
    with device.side_stream(Event()):  # type: ignore[arg-type]
        pass
    assert contexts == order * 2


def test_all_side_work_of_a_gpu_shares_one_stream(contexts: list[str]) -> None:
    for _ in range(3):
        with device.side_stream(Event()):  # type: ignore[arg-type]
            pass
    assert [stream.device for stream in Stream.made] == [GPU]


def test_a_run_is_made_deterministic_before_it_does_anything(
    monkeypatch: pytest.MonkeyPatch, usual_algorithms: None
) -> None:
    class Begun(Exception):
        pass

    def begin(*_: object) -> None:
        raise Begun

    monkeypatch.setattr(training_loop, "connect_store", begin)
    for wanted in (False, True):
        with pytest.raises(Begun):
            training_loop.train(config(learner={"deterministic": wanted}), None)  # type: ignore[arg-type]
        assert torch.are_deterministic_algorithms_enabled() is wanted
        assert ("CUBLAS_WORKSPACE_CONFIG" in os.environ) is wanted
