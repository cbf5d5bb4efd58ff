"""A checkpoint of a GPU's state is copied beside the next update's kernels, and nothing changes before it is copied."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from echo_queue.config import Learner
from echo_queue.connections.storage.object_store import ObjectStore
from echo_queue.records import Version
from learner.model import device
from learner.model.past_versions import PastVersions
from learner.model.policy import Policy
from learner.ranks.team import Team
from learner.recovery.background_saver import BackgroundSaver
from learner.recovery.manifest import History
from learner.recovery.state_files import whole
from learner.update import learn
from tests.learner.gpu_stand_in import OnGpu, stand_in
from tests.learner.recovery import one_process
from tests.learner.synthetic import group, tiny_model

DEADLINE_S = 60.0
SETTINGS = Learner(lr=0.1)


@pytest.fixture(autouse=True)
def _gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with stand_in(monkeypatch):
        yield


def begin_copies(policy: Policy) -> tuple[list[Tensor], list[Tensor], "torch.cuda.Event"]:
    """Begins to copy the policy's masters; returns what they are, the rooms, and when these are complete."""
    masters = [OnGpu.of(master) for master in policy.masters.values()]
    rooms = [torch.zeros(master.shape) for master in masters]
    copied = device.copy_beside(rooms, masters)
    assert copied is not None
    return [master.detach().clone() for master in policy.masters.values()], rooms, copied


def are_equal(found: list[Tensor], expected: list[Tensor]) -> bool:
    return all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


def test_an_optimizer_step_waits_for_the_copy_and_nothing_before_it_does() -> None:
    policy = Policy(tiny_model(), SETTINGS)
    before, rooms, copied = begin_copies(policy)
    policy.keep_until(copied)
    policy.published()
    assert not rooms[0].any(), "the thread went on without the copy"
    learn(policy, [group(0), group(1)], 1, SETTINGS, 1.0)
    assert are_equal(rooms, before)
    assert not are_equal([master.detach() for master in policy.masters.values()], before), "the step changed nothing"


def test_going_back_to_an_older_version_waits_for_the_copy() -> None:
    policy = Policy(tiny_model(), SETTINGS)
    past = PastVersions(policy, 2)
    learn(policy, [group(0), group(1)], 1, SETTINGS, 1.0, past=past)
    before, rooms, copied = begin_copies(policy)
    policy.keep_until(copied)
    with past.visit(1, 0) as go_back_to:
        go_back_to(0)
        assert not are_equal([master.detach() for master in policy.masters.values()], before)
    assert are_equal(rooms, before)


def test_a_checkpoint_is_written_once_its_copy_is_complete(store: ObjectStore) -> None:
    saver, weight = BackgroundSaver(store, Team.alone(), DEADLINE_S), torch.arange(6.0) + 1
    copied = saver.begin(Version(1, 1), tuple(whole({"weight": OnGpu.of(weight)})), History(("a/0/1",), None, 1.0))
    assert copied is not None
    assert saver.wait() is not None
    found = one_process.newest(store)
    assert found is not None and torch.equal(found[1]["weight"], weight)


def test_the_memory_of_checkpoints_is_pinned_once_and_beside_the_loop(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty, pinning = torch.empty, list[threading.Thread]()

    def take(*size: Any, pin_memory: bool = False, **options: Any) -> Tensor:
        if pin_memory:
            pinning.append(threading.current_thread())
        return empty(*size, **options)

    monkeypatch.setattr(torch, "empty", take)
    saver, pieces = BackgroundSaver(store, Team.alone(), DEADLINE_S), tuple(whole({"weight": OnGpu.of(torch.ones(6))}))
    for number in (1, 2):
        saver.make_room(lambda: pieces)
        saver.begin(Version(1, number), pieces, History((), None, 1.0))
        saver.wait()
    assert len(pinning) == 1 and pinning[0] is not threading.current_thread()


def test_a_learner_without_a_gpu_makes_no_room_beside_the_loop(store: ObjectStore) -> None:
    saver = BackgroundSaver(store, Team.alone(), DEADLINE_S)
    saver.make_room(lambda: tuple(whole({"weight": torch.ones(6)})))
    assert saver._making_room is None
