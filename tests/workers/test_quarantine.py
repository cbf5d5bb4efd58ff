"""A worker whose engine breaks while it takes new weights, with real services and a real engine that fails."""

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from echo_queue.config import Config
from echo_queue.errors import EchoQueueError
from echo_queue.records import PartialSample, Version
from tests.waiting import DEADLINE_S
from tests.workers.small import save_model
from tests.workers.worker_harness import WorkerHarness, assert_generated_by, tensors_of
from workers.engines import Engine, SampleKey
from workers.engines.transformers.engine import TransformersEngine

torch.set_num_threads(1)
Begin = Callable[..., WorkerHarness]
QUESTIONS = [f"What is the sum of {number} and 2?" for number in range(6)]


class Failing(TransformersEngine):
    """Breaks `failures` times in the middle of loading version 1 or a later one, in the way that `how` says."""

    failures = 1

    def __init__(self, folder: str, config: Config, stop_tokens: Sequence[int], how: str) -> None:
        longest = config.model.max_prompt_tokens + config.model.max_new_tokens
        super().__init__(folder, Version(0, 0), config.model.dtype, longest, stop_tokens)
        self.how = how
        self.loads: list[Version] = []

    def load(self, version: Version, tensors: Mapping[str, Tensor]) -> None:
        self.loads.append(version)
        if version.number == 0 or self.failures == 0:
            super().load(version, tensors)
            return
        self.failures -= 1
        if self.how == "raises":
            with torch.no_grad():
                for name in list(tensors)[: len(tensors) // 2]:
                    self.weight(name).copy_(tensors[name])
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        super().load(version, tensors)
        with torch.no_grad():  # the last byte did not arrive
            self.weight(max(tensors)).view(-1)[-1] += 1


class Unhurried(Failing):
    """Waits before each token until it is told to load newer weights: what runs is under way until then."""

    def __init__(self, *settings: Any) -> None:
        super().__init__(*settings)
        self._newer = threading.Event()

    def load(self, version: Version, tensors: Mapping[str, Tensor]) -> None:
        if version.number > 0:
            self._newer.set()
        super().load(version, tensors)

    def step(self) -> Mapping[SampleKey, PartialSample]:
        self._newer.wait(0.1)
        return super().step()


class Patient(Failing):
    """Is loaded again once `seen` is set, so that the quarantine lasts until the test has seen it."""

    def __init__(self, *settings: Any) -> None:
        super().__init__(*settings)
        self.seen = threading.Event()

    def load(self, version: Version, tensors: Mapping[str, Tensor]) -> None:
        if version.number > 0 and self.failures == 0:
            assert self.seen.wait(DEADLINE_S), "the test saw the quarantine"
        super().load(version, tensors)


def failing(
    how: str, failures: int, made: list[Failing], engine: type[Failing] = Failing
) -> Callable[[Config, str, Version, Sequence[int]], Engine]:
    def make(config: Config, folder: str, version: Version, stop_tokens: Sequence[int]) -> Engine:
        made.append(engine(folder, config, stop_tokens, how))
        made[-1].failures = failures
        return made[-1]

    return make


@pytest.mark.slow
@pytest.mark.parametrize("how", ["raises", "garbles"])
def test_an_engine_that_breaks_while_loading_is_quarantined_and_loaded_anew(
    harness: Begin, folder: Path, tmp_path: Path, how: str
) -> None:
    newer = save_model(tmp_path / "newer", seed=1)
    run, made = harness(staleness={"s": 0}), list[Failing]()
    run.begin(QUESTIONS[:4], tensors_of(folder), wanted="3")
    run.worker("w1", failing(how, 1, made, Patient))
    for group in run.drain(2):
        assert_generated_by(folder, group, temperature=0.8)
    run.publish(1, tensors_of(newer))
    run.queue.advance(run.lineage, 1, 2, 1.0)

    def quarantined() -> bool:
        run.queue.reclaim()
        (worker,) = run.status().workers
        return worker.heartbeat is not None and worker.heartbeat.state == "quarantined" and worker.held == 0

    run.until(quarantined, "quarantine with empty hands")
    (worker,) = run.status().workers
    assert worker.heartbeat and worker.heartbeat.version == Version(run.lineage, 0), "the new version is not served yet"
    assert isinstance(made[0], Patient)
    made[0].seen.set()
    for group in run.drain(2):
        assert group.oldest == group.newest == 1 and group.attempt == 0, "handed back, at no cost"
        assert_generated_by(newer, group, temperature=0.8)
    assert made[0].loads == [Version(1, 0), Version(1, 1), Version(1, 1)]
    assert run.queue.audit().ok


@pytest.mark.slow
def test_what_runs_is_handed_back_before_weights_are_built_anew(harness: Begin, tmp_path: Path) -> None:
    old, new = (save_model(tmp_path / name, seed, stop=False) for seed, name in enumerate(("old", "new")))
    sizes = {"base": str(old), "max_prompt_tokens": 64, "max_new_tokens": 300}
    run, made = harness(old, model=sizes, staleness={"s": 1}), list[Failing]()
    run.begin(QUESTIONS[:2], tensors_of(old), wanted="3")
    run.worker("w1", failing("raises", 1, made, Unhurried))
    run.until(lambda: any(one.heartbeat and one.heartbeat.tokens_per_s > 0 for one in run.status().workers), "tokens")
    run.publish(1, tensors_of(new))
    released = 0

    def handed_back() -> bool:
        nonlocal released
        released += run.queue.reclaim().released
        return released >= 2

    run.until(handed_back, "both tasks' return")
    assert {(group.newest, group.attempt) for group in run.drain(2)} == {(1, 0)}


@pytest.mark.slow
def test_an_engine_that_breaks_again_ends_its_worker_with_one_error(
    harness: Begin, folder: Path, tmp_path: Path
) -> None:
    newer = save_model(tmp_path / "newer", seed=1)
    run, made = harness(staleness={"s": 0}), list[Failing]()
    run.begin(QUESTIONS[:4], tensors_of(folder), wanted="3")
    worker = run.worker("w1", failing("raises", 2, made))
    run.drain(2)
    run.publish(1, tensors_of(newer))
    run.queue.advance(run.lineage, 1, 2, 1.0)
    worker.join(timeout=120)
    (error,) = run.errors
    assert isinstance(error, EchoQueueError) and "take the worker elsewhere" in str(error)
    expired = 0

    def nothing_flies() -> bool:
        nonlocal expired
        expired += run.queue.reclaim().expired
        return run.status().in_flight == 0

    run.until(nothing_flies, "the end of its leases")
    assert expired == 0, "it had handed back what it held"
    run.errors.clear()
    run.worker("w2")
    assert {group.worker for group in run.drain(2)} == {"w2"}
