"""Workers answer rounds of evaluation, with real services and real engines; the learner is the test."""

import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from echo_queue import failpoints
from echo_queue.config import Config
from echo_queue.errors import ConfigError
from echo_queue.queue.pool_status import pools_of
from echo_queue.records import PartialSample, Published, Version
from tests.waiting import DEADLINE_S, wait_until
from tests.workers.small import save_model
from tests.workers.worker_harness import WorkerHarness, assert_generated_by, generating, tensors_of
from workers.engines import Engine, SampleKey, SampleRequest
from workers.engines.transformers.engine import TransformersEngine
from workers.weights.weight_watcher import WeightWatcher

torch.set_num_threads(1)
pytestmark = pytest.mark.slow
Begin = Callable[..., WorkerHarness]
QUESTIONS = [f"What is the sum of {number} and 2?" for number in range(6)]
HELD = {"name": "held"}


class Unhurried(TransformersEngine):
    """Stops once a sample of the set `held` has some tokens, until it is told to `go`, and notes what it does."""

    def __init__(self, config: Config, folder: str, version: Version, stop_tokens: Sequence[int]) -> None:
        longest = config.model.max_prompt_tokens + config.model.max_new_tokens
        super().__init__(folder, version, config.model.dtype, longest, stop_tokens)
        self.stopped, self.go = threading.Event(), threading.Event()
        self.asked = set[tuple[str, Version]]()
        """The tasks that were added, each with the version that was to generate it."""
        self.disturbed = set[str]()
        """The tasks of the set that ran while other weights were loaded."""

    def add(self, requests: Sequence[SampleRequest]) -> None:
        self.asked |= {(request.key.task, self.version) for request in requests}
        super().add(requests)

    def step(self) -> Mapping[SampleKey, PartialSample]:
        if any(len(partial_sample.tokens) > 2 for partial_sample in self._held().values()):
            self.stopped.set()
            assert self.go.wait(DEADLINE_S), "the test lets the engine go on"
        return super().step()

    def load(self, version: Version, tensors: Mapping[str, Tensor]) -> None:
        self.disturbed |= {key.task for key in self._held()}
        super().load(version, tensors)

    def versions_of(self, task: str) -> set[Version]:
        return {version for name, version in self.asked if name.startswith(task)}

    def _held(self) -> Mapping[SampleKey, PartialSample]:
        return {key: one for key, one in self.partials().items() if key.task.startswith("held/")}


class Busy(TransformersEngine):
    """Goes on stepping without an end of its samples until it is told to `go`."""

    go = threading.Event()

    def __init__(self, config: Config, folder: str, version: Version, stop_tokens: Sequence[int]) -> None:
        longest = config.model.max_prompt_tokens + config.model.max_new_tokens
        super().__init__(folder, version, config.model.dtype, longest, stop_tokens)

    def step(self) -> Mapping[SampleKey, PartialSample]:
        begun = any(len(partial_sample.tokens) > 2 for partial_sample in self.partials().values())
        return {} if begun and not self.go.wait(0.001) else super().step()


class Stage:
    """A run whose workers have `Unhurried` engines, and the versions that they have staged so far."""

    def __init__(self, run: WorkerHarness, monkeypatch: pytest.MonkeyPatch) -> None:
        self.run, self.engines = run, list[Unhurried]()
        self._opening = threading.Lock()  # transformers opens one model at a time
        self._staged: list[Version] = []
        stage = WeightWatcher._stage_version

        def noted(watcher: WeightWatcher, published: Published) -> None:
            stage(watcher, published)
            self._staged.append(published.version)

        monkeypatch.setattr(WeightWatcher, "_stage_version", noted)

    def worker(self, name: str) -> threading.Thread:
        def make(config: Config, folder: str, version: Version, stop_tokens: Sequence[int]) -> Engine:
            with self._opening:
                self.engines.append(Unhurried(config, folder, version, stop_tokens))
                return self.engines[-1]

        return self.run.worker(name, make)

    def until_stopped(self) -> None:
        """Waits until every worker runs samples of the held-out set."""
        run = self.run
        run.until(lambda: bool(self.engines) and all(one.stopped.is_set() for one in self.engines), "answers")

    def go_on_with(self, version: Version) -> None:
        """Lets the engines go on once all workers have the weights of this version in hand."""
        self.run.until(lambda: self._staged.count(version) == len(self.engines), f"weights {version}")
        for one in self.engines:
            one.go.set()


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A model and a newer one; no token ends their samples."""
    folder = tmp_path_factory.mktemp("models")
    return save_model(folder / "old", seed=0, stop=False), save_model(folder / "new", seed=1, stop=False)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """A worker in sync mode takes all cores of its process, which is this one."""
    yield
    torch.set_num_threads(1)


def of_version(run: WorkerHarness, number: int) -> tuple[int, int, int]:
    return number, number, run.lineage


def test_a_round_is_answered_by_its_version_alone_although_newer_weights_are_there(
    harness: Begin, models: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """… more prompts than a worker has room for; then it takes the weights that it has put off, with nothing to do."""
    old, new = models
    run = harness(old, evaluation=[HELD | {"samples": 2, "temperature": 0.5}])
    stage = Stage(run, monkeypatch)
    run.begin([], tensors_of(old))
    run.hold_out("held", QUESTIONS * 2, wanted="3")
    run.evaluate(0, "held")
    stage.worker("w1")
    stage.until_stopped()
    run.publish(1, tensors_of(new))
    stage.go_on_with(Version(run.lineage, 1))
    for group in run.answers(12):
        assert (group.oldest, group.newest, group.lineage) == of_version(run, 0) and len(group.samples) == 2
        assert_generated_by(old, group, temperature=0.5)
    run.until(lambda: run.serves(1), "the newer weights")
    assert not stage.engines[0].disturbed and run.queue.audit().ok


def test_a_worker_whose_batch_is_full_keeps_a_version_that_a_round_asks(
    harness: Begin, models: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = models
    monkeypatch.setattr(Busy, "go", threading.Event())
    run = harness(old, rollout={"concurrent_groups": 1}, staleness={"s": 4}, evaluation=[HELD])
    run.begin(QUESTIONS[:1], tensors_of(old), wanted="3")
    run.hold_out("held", QUESTIONS, wanted="3")
    run.worker("w1", Busy)
    run.until(lambda: run.status().in_flight == 1, "a full batch")
    run.evaluate(1, "held")
    run.queue.advance(run.lineage, 1, 0, 1.0)
    run.publish(1, tensors_of(new))

    def kept() -> bool:
        under_way = run.status().evaluation
        return under_way is not None and under_way.keepers == 1

    run.until(kept, "a keeper")
    run.queue.advance(run.lineage, 2, 0, 1.0)
    run.publish(2, tensors_of(old))
    Busy.go.set()
    assert {(group.oldest, group.newest, group.lineage) for group in run.answers(6)} == {of_version(run, 1)}
    run.until(lambda: run.serves(2), "the newest weights")


@pytest.mark.parametrize(("mode", "workers"), [("in-flight", 2), ("pull", 2), ("push-pull", 2), ("sync", 1)])
def test_training_on_policy_waits_for_a_round_and_goes_on(
    harness: Begin, models: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, mode: str, workers: int
) -> None:
    old, new = models
    rollout = {"mode": mode, "workers": workers, "concurrent_groups": 2}
    run = harness(old, rollout=rollout, staleness={"s": 0}, evaluation=[HELD])
    stage = Stage(run, monkeypatch)
    run.begin(QUESTIONS[:4], tensors_of(old), wanted="3")
    run.hold_out("held", QUESTIONS * 3, wanted="3")
    for number in range(workers):
        stage.worker(f"w{number}")
    assert {group.oldest for group in run.drain(2)} == {0}
    run.evaluate(0, "held")
    stage.until_stopped()
    run.publish(1, tensors_of(new))
    run.queue.advance(run.lineage, 1, 2, 1.0)
    stage.go_on_with(Version(run.lineage, 1))
    assert {(group.oldest, group.newest) for group in run.drain(2)} == {(1, 1)}
    assert {(group.oldest, group.newest, group.lineage) for group in run.answers(18)} == {of_version(run, 0)}
    run.until(lambda: run.serves(1), "the newer weights")
    assert not any(one.disturbed for one in stage.engines) and run.queue.audit().ok


def test_a_new_lineage_hands_back_what_the_weights_before_it_were_to_answer(
    harness: Begin, models: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = models
    run = harness(old, evaluation=[HELD])
    stage = Stage(run, monkeypatch)
    run.begin([], tensors_of(old))
    run.hold_out("held", QUESTIONS, wanted="3")
    first = run.evaluate(0, "held")
    stage.worker("w1")
    stage.until_stopped()
    under_way = run.status().evaluation
    assert under_way is not None
    run.learner_begins()
    run.publish(0, tensors_of(new))
    stage.go_on_with(Version(run.lineage, 0))
    released = 0

    def handed_back() -> bool:
        nonlocal released
        released += run.queue.reclaim().released
        return released == under_way.running

    run.until(handed_back, "the return of all tasks")
    assert stage.engines[0].versions_of(f"held/{first}/") == {Version(run.lineage - 1, 0)}
    run.queue.conclude(run.lineage, first)
    run.evaluate(0, "held")
    assert {(group.oldest, group.newest, group.lineage) for group in run.answers(6)} == {of_version(run, 0)}
    assert run.queue.audit().ok


class SlowLease:
    """Brings a lease of a round to the worker only once it serves newer weights."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self.leased = 0

    def before(self, step: str, about: object) -> None: ...

    def after(self, step: str, about: object, answer: Any) -> None:
        if step == "lease" and not self.leased and (tasks := answer[0][-1]):
            self.leased = len(tasks)
            run, (engine,) = self._stage.run, self._stage.engines
            run.publish(1, tensors_of(Path(run.config.model.base)))
            wait_until(lambda: engine.version.number == 1, "the newer weights")


def test_a_lease_that_comes_after_newer_weights_is_handed_back(
    harness: Begin, models: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = harness(models[0], evaluation=[HELD])
    stage = Stage(run, monkeypatch)
    run.begin([], tensors_of(models[0]))
    run.hold_out("held", QUESTIONS, wanted="3")
    run.evaluate(0, "held")
    slow = SlowLease(stage)
    monkeypatch.setattr(failpoints, "observer", slow)
    stage.worker("w1")
    released = 0

    def handed_back() -> bool:
        nonlocal released
        released += run.queue.reclaim().released
        return 0 < slow.leased == released

    run.until(handed_back, "the return of all tasks")
    assert not stage.engines[0].asked


def test_evaluations_are_drawn_and_scored_by_their_own_terms_beside_training(harness: Begin, folder: Path) -> None:
    """… and do not count among the figures of training, by which fleets are planned."""
    lengths = {"kind": "function", "function": "tests.workers.rewards:counts_ids"}
    game = {"kind": "interactive", "function": "tests.workers.guessing:Answers", "max_turns": 2}
    evaluations = [
        {"name": "greedy", "temperature": 0.0, "max_new_tokens": 5},
        {"name": "lengths", "temperature": 0.5, "samples": 7, "environment": lengths},
        {"name": "game", "temperature": 0.6, "environment": game},
    ]
    run = harness(evaluation=evaluations)
    run.begin(QUESTIONS[:4], tensors_of(folder), wanted="3")
    for one in evaluations:
        run.hold_out(str(one["name"]), QUESTIONS, wanted="3", answer="0")
    run.worker("w1")
    run.evaluate(0, "greedy", "lengths", "game")
    answers = run.answers(18)
    for group in run.drain(4):
        assert_generated_by(folder, group, temperature=0.8)
        assert len(group.samples) == 3 and {sample.reward for sample in group.samples} <= {0.0, 1.0}
    for group in answers:
        samples = group.samples
        if group.set == "game":
            assert [sample.reward for sample in samples] == [0.5]
            continue
        assert_generated_by(folder, group, temperature={"greedy": 1.0, "lengths": 0.5}[group.set])
        if group.set == "greedy":
            assert len(samples) == 1 and len(samples[0].tokens) <= 5 and samples[0].reward in {0.0, 1.0}
        else:
            assert len(samples) == 7 and all(sample.reward == len(sample.tokens) for sample in samples)
    run.publish(1, tensors_of(folder))
    run.until(lambda: run.serves(1) and pools_of(run.status().workers)[0].generation.groups >= 4, "a later heartbeat")
    (worker,) = run.status().workers
    assert worker.heartbeat and (worker.heartbeat.groups, pools_of([worker])[0].generation.groups) == (4, 4)


def test_an_evaluation_that_the_workers_do_not_know_fails_with_the_reason(harness: Begin, folder: Path) -> None:
    run = harness()
    run.begin(QUESTIONS[:1], tensors_of(folder), wanted="3")
    run.hold_out("strange", QUESTIONS[:2])
    run.evaluate(0, "strange")
    run.worker("w1")
    for one in run.scored(2):
        assert one.group is None and "this worker names no evaluation strange" in one.reason
    assert run.drain(1)


def test_an_evaluation_whose_environment_cannot_be_made_ends_the_worker_before_it_leases(
    harness: Begin, folder: Path
) -> None:
    broken = {"kind": "function", "function": "nowhere_at_all:f"}
    run = harness(evaluation=[HELD | {"environment": broken}])
    run.begin(QUESTIONS[:1], tensors_of(folder), wanted="3")
    run.worker("w1").join(timeout=120)
    (error,) = run.errors
    assert isinstance(error, ConfigError) and "nowhere_at_all" in str(error)
    assert run.status().in_flight == 0


def test_another_worker_goes_on_with_the_answers_of_one_that_was_taken_away(
    harness: Begin, models: tuple[Path, Path]
) -> None:
    sizes = {"base": str(models[0]), "max_prompt_tokens": 64, "max_new_tokens": 2000}
    run = harness(models[0], model=sizes, rollout={"grace_s": 20.0}, evaluation=[HELD | {"samples": 2}])
    run.begin([], tensors_of(models[0]))
    run.hold_out("held", QUESTIONS[:2], wanted="3")
    run.evaluate(0, "held")
    taken = run.process("w1")
    run.until(lambda: generating(run), "tokens")
    os.kill(taken.pid, signal.SIGTERM)
    assert taken.wait(timeout=120) == 0
    run.worker("w2")
    for group in run.answers(2):
        assert (group.worker, group.attempt, len(group.samples)) == ("w2", 0, 2)
        assert_generated_by(models[0], group, temperature=1.0)
    assert run.status().counts["tokens_continued"] > 0 and run.queue.audit().ok
