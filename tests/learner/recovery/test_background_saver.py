"""Checkpoints are saved beside the training loop: it goes on meanwhile, and hears of every failure."""

import threading
from collections.abc import Callable, Iterator

import pytest
import torch

from echo_queue import failpoints
from echo_queue.connections.storage.object_store import ObjectStore
from echo_queue.errors import DeadlineError, FencedError, Problem, ServiceError
from echo_queue.records import Version
from learner.ranks.team import Team
from learner.recovery import checkpoint
from learner.recovery.background_saver import BackgroundSaver
from learner.recovery.manifest import CheckpointManifest, History
from learner.recovery.state_files import whole
from learner.training_loop import open_loop, train
from tests.learner.learner_harness import LearnerHarness
from tests.learner.recovery import one_process
from tests.waiting import wait_until

DEADLINE_S = 60.0
PUT = "put checkpoints"


class At:
    """Calls `action` before each step of the name `step`, in the thread that takes it."""

    def __init__(self, step: str, action: Callable[[], object]) -> None:
        self._step, self._action = step, action

    def before(self, step: str, about: object) -> None:
        if step == self._step:
            self._action()

    def after(self, step: str, about: object, answer: object) -> None:
        pass


class Gate:
    """Holds up the thread that uploads a checkpoint, until it is opened."""

    def __init__(self) -> None:
        self._open, self.reached = threading.Event(), threading.Event()

    def pass_through(self) -> None:
        self.reached.set()
        if not self._open.wait(DEADLINE_S):
            raise TimeoutError("nobody opened the gate")

    def open(self) -> None:
        self._open.set()


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    gate = Gate()
    monkeypatch.setattr(failpoints, "observer", At(PUT, gate.pass_through))
    yield gate
    gate.open()


def refuse() -> None:
    raise ServiceError(Problem("store.url", "is full", "free some space"))


def begin(
    saver: BackgroundSaver, number: int, tensors: dict[str, torch.Tensor], parent: CheckpointManifest | None = None
) -> None:
    history = History((f"a/0/{number}",), parent.name if parent else None, 1.0)
    saver.begin(Version(1, number), tuple(whole(tensors)), history)


def newest(store: ObjectStore) -> tuple[CheckpointManifest, dict[str, torch.Tensor]]:
    found = one_process.newest(store)
    assert found is not None
    return found


def test_what_is_saved_is_the_state_as_it_was_when_saving_began(store: ObjectStore, gate: Gate) -> None:
    saver, weight = BackgroundSaver(store, Team.alone(), DEADLINE_S), torch.arange(6.0)
    begin(saver, 1, {"weight": weight})
    weight.add_(100)
    assert saver.finished() is None
    gate.open()
    saved = saver.wait()
    assert saved is not None and saved.trained == ("a/0/1",)
    assert saver.wait() is saver.finished() is None, "each checkpoint is given once"
    manifest, tensors = newest(store)
    assert manifest == saved and torch.equal(tensors["weight"], torch.arange(6.0))


def test_the_memory_of_the_copies_is_used_again(store: ObjectStore) -> None:
    saver = BackgroundSaver(store, Team.alone(), DEADLINE_S)
    begin(saver, 1, {"weight": torch.zeros(6)})
    before, first = saver._copies["weight", 0].data_ptr(), saver.wait()
    begin(saver, 2, {"weight": torch.ones(6), "late": torch.ones(2)}, first)
    assert saver._copies["weight", 0].data_ptr() == before
    saver.wait()
    assert torch.equal(newest(store)[1]["late"], torch.ones(2))
    begin(saver, 3, {"weight": torch.ones(7)})
    assert list(saver._copies) == [("weight", 0)]
    saver.wait()
    assert torch.equal(newest(store)[1]["weight"], torch.ones(7))


def test_the_copies_share_slabs(store: ObjectStore) -> None:
    saver = BackgroundSaver(store, Team.alone(), DEADLINE_S)
    begin(saver, 1, {str(number): torch.full((1000,), float(number)) for number in range(100)})
    slabs = {copy.untyped_storage().data_ptr(): copy.untyped_storage().nbytes() for copy in saver._copies.values()}
    assert len(slabs) < 20 and sum(slabs.values()) < 1.2 * 100 * 4_000
    saver.wait()
    assert all(torch.equal(tensor, torch.full((1000,), float(name))) for name, tensor in newest(store)[1].items())


def test_a_checkpoint_that_takes_too_long_is_named(store: ObjectStore, gate: Gate) -> None:
    saver = BackgroundSaver(store, Team.alone(), 0.1)
    begin(saver, 7, {"weight": torch.zeros(1)})
    with pytest.raises(DeadlineError, match="checkpoint 0001/00000007 was not saved within"):
        saver.wait()
    with pytest.raises(RuntimeError, match="0001/00000007 is still being saved"):
        begin(saver, 8, {"weight": torch.zeros(1)})


def test_a_learner_that_another_overtook_hears_of_it(store: ObjectStore) -> None:
    one_process.save(store, Version(1, 1), {"w": torch.zeros(1)}, trained=("other",), parent=None, window=1.0)
    saver = BackgroundSaver(store, Team.alone(), DEADLINE_S)
    begin(saver, 1, {"weight": torch.zeros(1)})
    with pytest.raises(FencedError):
        saver.wait()
    with pytest.raises(FencedError):
        saver.check()


def test_a_prune_that_fails_is_heard_of(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    saver = BackgroundSaver(store, Team.alone(), DEADLINE_S)
    begin(saver, 1, {"weight": torch.zeros(1)})
    first = saver.wait()
    begin(saver, 2, {"weight": torch.ones(1)}, first)
    second = saver.wait()
    assert first is not None and second is not None
    monkeypatch.setattr(failpoints, "observer", At("delete checkpoints", refuse))
    saver.prune(second, keep=1)
    saver.close()
    with pytest.raises(ServiceError, match="is full"):
        saver.check()
    monkeypatch.setattr(failpoints, "observer", None)
    again = BackgroundSaver(store, Team.alone(), DEADLINE_S)
    again.prune(second, keep=1)
    again.close()
    again.check()
    assert [all(map(store.exists, saved.keys)) for saved in (first, second)] == [False, True]


@pytest.mark.slow
def test_training_goes_on_while_a_checkpoint_is_saved_and_commits_it_then(gate: Gate, harness: LearnerHarness) -> None:
    config = harness.config(learner={"checkpoint_updates": 6})
    harness.submit(config, 42)
    harness.work(config)
    queue = harness.queue(config)
    learner = threading.Thread(target=train, args=(config, threading.Event()), daemon=True)
    learner.start()
    assert gate.reached.wait(DEADLINE_S)
    wait_until(lambda: queue.status().learner.number >= 10, "updates after the one that is being saved")
    assert queue.audit().trained == 0
    assert checkpoint.trained_ids(harness.store(config)) == []
    gate.open()
    learner.join(DEADLINE_S)
    assert not learner.is_alive()
    assert queue.status().finished and queue.audit().trained == 42
    assert len(checkpoint.trained_ids(harness.store(config))) == 42


@pytest.mark.slow
def test_a_failed_upload_ends_the_learner_with_its_error(
    monkeypatch: pytest.MonkeyPatch, harness: LearnerHarness
) -> None:
    full = threading.Event()
    full.set()
    monkeypatch.setattr(failpoints, "observer", At(PUT, lambda: refuse() if full.is_set() else None))
    config = harness.config()
    harness.submit(config, 42)
    harness.work(config)
    with pytest.raises(ServiceError, match="is full"):
        train(config, threading.Event())
    audit = harness.queue(config).audit()
    assert audit.ok and audit.trained == 0
    full.clear()
    train(config, threading.Event())
    assert harness.queue(config).audit().trained == 42


def test_a_failed_upload_is_noticed_while_the_learner_waits_for_groups(
    monkeypatch: pytest.MonkeyPatch, harness: LearnerHarness
) -> None:
    config = harness.config(queue={"stall_deadline_s": DEADLINE_S})
    harness.submit(config, 42)
    loop = open_loop(config, harness.store(config), Team.alone(), torch.device("cpu"))
    monkeypatch.setattr(failpoints, "observer", At(PUT, refuse))
    begin(loop.saver, 1, {"weight": torch.zeros(1)})
    with pytest.raises(ServiceError, match="is full"):
        loop.leader.collector.gather(0, threading.Event())


@pytest.mark.slow
def test_checkpoints_come_by_time_as_well(harness: LearnerHarness) -> None:
    config = harness.config(learner={"checkpoint_updates": 1000, "checkpoint_s": 1e-6, "keep_checkpoints": 50})
    harness.submit(config, 42)
    harness.work(config)
    train(config, threading.Event())
    assert len(list(checkpoint.history(harness.store(config)))) == 12, "with the mark at which the lineage began"
