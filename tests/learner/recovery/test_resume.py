"""The queue follows the checkpoints: what survives in them is trained, and nothing else is."""

import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partialmethod
from typing import Any

import pytest
import torch

from echo_queue.config import Config
from echo_queue.errors import EchoQueueError, FencedError, PromptError, ServiceError, SetBackError
from echo_queue.queue import Chunk, LearnerQueue, Outcome, PromptSet, RunRules
from echo_queue.queue.submitter import digest_of
from echo_queue.records import PromptShard, Published, Version
from echo_queue.reporting import metrics
from learner.ranks.team import Team
from learner.recovery import checkpoint
from learner.recovery import resume as resuming
from learner.recovery.manifest import CheckpointManifest
from learner.recovery.resume import Trained, resume
from learner.recovery.rewind import choices, rewind
from learner.training_loop import open_loop, train
from tests.learner.learner_harness import LearnerHarness
from tests.learner.recovery.one_process import newest as newest_whole
from tests.learner.recovery.one_process import save
from tests.learner.selection_methods import METHODS
from tests.queue.queue_harness import QueueHarness
from tests.waiting import wait_until

PROMPTS = 42
FIRST = ("oldest first", "reuse")
"""The usual method, and the one whose learner could train a group a second time."""
IDS = sorted(f"set/0/{index}" for index in range(PROMPTS))


def trained_once(harness: LearnerHarness, config: Config) -> bool:
    audit = harness.queue(config).audit()
    trained = sorted(checkpoint.trained_ids(harness.store(config)))
    return audit.ok and audit.trained == PROMPTS and trained == IDS


def a_run_that_ended(harness: LearnerHarness, method: str = "oldest first") -> Config:
    changes = METHODS[method]
    config = harness.config(**{**changes, "learner": {"keep_checkpoints": 16, **changes.get("learner", {})}})
    harness.submit(config, PROMPTS)
    harness.work(config)
    train(config, threading.Event())
    assert trained_once(harness, config)
    return config


def manifests(harness: LearnerHarness, config: Config) -> list[CheckpointManifest]:
    """Returns the manifests of the surviving history after the base model, newest first."""
    return [one for one in checkpoint.history(harness.store(config)) if not one.at_base]


@pytest.mark.slow
@pytest.mark.parametrize(
    "method",
    [
        pytest.param(method, marks=[] if method in FIRST else pytest.mark.proof(kind="rewinds", share=0.25))
        for method in METHODS
    ],
)
def test_a_rewind_trains_again_what_was_trained_after_it_and_nothing_else(harness: LearnerHarness, method: str) -> None:
    """… with each method of selection; the groups that the learner could have trained a second time are forgotten."""
    config = a_run_that_ended(harness, method)
    store, queue = harness.store(config), harness.queue(config)
    target = manifests(harness, config)[-1]
    assert rewind(queue.learner(), queue, store, target.name) == PROMPTS - len(target.trained)
    status, audit = queue.status(), queue.audit()
    assert (audit.ok, audit.trained, audit.backlog) == (True, len(target.trained), PROMPTS - len(target.trained))
    assert (status.finished, status.learner.number, status.counts["undone"]) == (False, target.version, audit.backlog)

    train(config, threading.Event())
    assert trained_once(harness, config)
    first, *_, last = reversed(manifests(harness, config))
    assert (first.name, last.lineage) == (target.name, status.learner.lineage + 1)
    updates = metrics.read(config.run.dir / "metrics.jsonl")
    before, after = ([one for one in updates if one.lineage == lineage] for lineage in (target.lineage, last.lineage))
    assert not after[0].reused_lags
    for those in (before, after):
        assert any(one.reused_lags for one in those) == (method == "reuse")


def test_weights_of_a_learner_that_was_overtaken_are_left_behind(harness: LearnerHarness) -> None:
    """The first learner hangs while it saves; a second trains and publishes; then the first one's checkpoint lands."""
    config = harness.config(staleness={"s": 4}, learner={"batch_groups": 2})
    harness.submit(config, PROMPTS)
    store = harness.store(config)
    first, second, third = (harness.queue(config) for _ in range(3))
    worker = QueueHarness(first, replace(RunRules.of(config), pace=False))
    for queue, lineage in ((first, 1), (second, 2)):
        assert resume(queue.learner(), store, worker.rules, None).lineage == lineage
        for number in range(3):
            worker.version = Version(lineage, number)
            queue.publish(lineage, Published(worker.version, "m", "d"))
            if number < 2:
                worker.complete(worker.lease(2))
                queue.drain(lineage, 2)
                queue.advance(lineage, number + 1, 2, 2.0)
    assert worker.complete(worker.lease(4)) == [Outcome.accepted] * 4
    landed = save(store, Version(1, 2), {"w": torch.zeros(1)}, trained=(), parent=None, window=2.0)
    with pytest.raises(FencedError):
        first.commit(1, landed.name, ())

    lineage = resume(third.learner(), store, worker.rules, landed).lineage
    assert third.lease("late", Version(2, 2), 1).abandoned
    assert not third.lease("early", Version(1, 2), 1).abandoned
    kept = {(group.lineage, group.newest) for group in third.pending(lineage)}
    assert kept == {(1, 0), (1, 1), (2, 0)}, "2.0 is the base, as 1.0 is; 2.1 is not of this history"
    drained = third.drain(lineage, 8)
    assert (drained.groups, drained.abandoned) == ((), 4)


def test_a_rewind_under_a_living_learner_is_refused(harness: LearnerHarness) -> None:
    config = harness.config()
    store, queue = harness.store(config), harness.queue(config)
    queue.configure(RunRules.of(config))
    made = save(store, Version(1, 1), {"w": torch.zeros(1)}, trained=(), parent=None, window=1.0)
    queue.reclaim()  # as a learner's housekeeper does
    with pytest.raises(EchoQueueError, match="learner: is alive"):
        rewind(queue.learner(), queue, store, made.name)


@pytest.mark.slow
def test_a_rewind_to_what_is_not_there_changes_nothing(harness: LearnerHarness) -> None:
    config = a_run_that_ended(harness)
    store, queue = harness.store(config), harness.queue(config)
    oldest = manifests(harness, config)[-1]
    store.delete(oldest.keys)
    assert [choice.whole for choice in choices(store)][-2:] == [False, True], "the last one is the base model"
    for name, what in (("0009/00000001", "is no checkpoint of this run's"), (oldest.name, "its tensors are gone")):
        with pytest.raises(EchoQueueError, match=what):
            rewind(queue.learner(), queue, store, name)
    assert trained_once(harness, config)


@pytest.mark.slow
def test_what_only_a_damaged_checkpoint_holds_is_trained_again(harness: LearnerHarness) -> None:
    config = a_run_that_ended(harness)
    store, queue = harness.store(config), harness.queue(config)
    newest, before, *_ = manifests(harness, config)
    store.put(newest.keys[0], b"torn")
    found = newest_whole(store)
    assert found is not None and found[0].name == before.name
    resume(queue.learner(), store, RunRules.of(config), found[0])
    audit = queue.audit()
    assert (audit.ok, audit.trained) == (True, PROMPTS - len(newest.trained))
    train(config, threading.Event())
    assert trained_once(harness, config)


@pytest.mark.slow
def test_a_redis_that_lost_everything_is_told_what_is_trained(harness: LearnerHarness) -> None:
    config = a_run_that_ended(harness)
    store, queue = harness.store(config), harness.queue(config)
    lineage = queue.status().learner.lineage
    harness.close_workers()  # one that leases before the run's rules are there again ends
    queue.client.delete(*queue.client.keys(queue.keys.prefix + "*"))
    queue.configure(RunRules.of(config))
    newest = manifests(harness, config)[0]
    assert resume(queue.learner(), store, RunRules.of(config), newest).lineage == lineage + 1
    with pytest.raises(PromptError, match="checkpoints of this run hold other prompts"):
        harness.submit(config, PROMPTS, digest="other prompts")
    harness.submit(config, PROMPTS)
    harness.submit(config, 2, "more")
    harness.work(config)
    train(config, threading.Event())
    audit = queue.audit()
    assert (audit.ok, audit.trained) == (True, PROMPTS + 2)
    assert sorted(checkpoint.trained_ids(store)) == sorted([*IDS, "more/0/0", "more/0/1"])


@pytest.mark.slow
def test_a_learner_whose_moves_were_forgotten_is_told_and_the_next_one_goes_on(harness: LearnerHarness) -> None:
    config = harness.config(learner={"checkpoint_updates": 2})
    harness.submit(config, PROMPTS)
    harness.work(config)
    queue = harness.queue(config)
    learner = open_loop(config, harness.store(config), Team.alone(), torch.device("cpu"))
    learner.leader.broadcast.start()
    before = queue.status()
    ends: list[BaseException] = []

    def run() -> None:
        try:
            learner.run(threading.Event())
        except SetBackError as error:
            ends.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    wait_until(lambda: queue.status().learner.number > before.learner.number + 4, "some updates")
    queue.client.hset(queue.keys.state, "turn", "1 drain")  # as if the moves after it had been forgotten
    thread.join(120)
    assert ends
    learner.leader.broadcast.close()
    train(config, threading.Event())
    assert trained_once(harness, config)


def test_a_queue_that_stands_at_no_checkpoint_follows_the_whole_history(harness: LearnerHarness) -> None:
    config = harness.config()
    store, queue = harness.store(config), harness.queue(config)
    queue.configure(RunRules.of(config))
    queue.declare(PromptSet("set", "made up"), [Chunk(0, 0, 4)])
    parent: CheckpointManifest | None = None
    for version in (1, 2):
        trained = (f"set/0/{version}",)
        parent = save(store, Version(1, version), {"w": torch.zeros(1)}, trained=trained, parent=parent, window=1.0)
    resume(queue.learner(), store, RunRules.of(config), parent)
    queue.publish(2, Published(Version(2, 2), "manifest", "digest"))
    queue.submit("set", 0, PromptShard("nowhere", 0, 4))
    assert [task.id for task in queue.lease("w1", Version(2, 2), 9).tasks] == ["set/0/0", "set/0/3"]
    assert (queue.audit().trained, queue.audit().ok) == (2, True)


def test_a_learner_that_begins_at_the_base_model_is_not_overtaken_unseen(harness: LearnerHarness) -> None:
    """The first learner hangs while it saves its first checkpoint; a second begins, and then that checkpoint lands."""
    config = harness.config()
    store, queue = harness.store(config), harness.queue(config)
    queue.configure(RunRules.of(config))
    first = resume(queue.learner(), store, RunRules.of(config), None, window=2.5)
    found = checkpoint.restore(store, Team.alone(), refuse_to_restore)
    assert found == first and (first.version, first.files, first.window) == (0, (), 2.5)
    second = resume(queue.learner(), store, RunRules.of(config), found)
    save(store, Version(1, 3), {"w": torch.zeros(1)}, trained=("set/0/0",), parent=first, window=2.0)
    assert checkpoint.restore(store, Team.alone(), refuse_to_restore) == second
    assert checkpoint.trained_ids(store) == []


def test_trained_weights_that_are_gone_are_not_taken_for_the_base_model(harness: LearnerHarness) -> None:
    config = harness.config()
    store, queue = harness.store(config), harness.queue(config)
    queue.configure(RunRules.of(config))
    began = resume(queue.learner(), store, RunRules.of(config), None)
    trained = save(store, Version(1, 3), {"w": torch.zeros(1)}, trained=("set/0/0",), parent=began, window=2.0)
    store.delete(trained.keys)
    with pytest.raises(ServiceError, match="no checkpoint is whole"):
        newest_whole(store)


def refuse_to_restore(*_: object) -> None:
    """Stands in for a policy that must be left as it is."""
    raise AssertionError("there is nothing to restore")


@pytest.mark.slow
def test_a_checkpoint_names_the_prompts_that_its_ids_mean(harness: LearnerHarness) -> None:
    config = harness.config(learner={"max_updates": 4, "checkpoint_updates": 2})
    harness.submit(config, 8, "first", digest="ab")
    harness.submit(config, 8, "then", digest="cd")
    harness.work(config)
    train(config, threading.Event())
    digests = {name: digest_of([Chunk(0, 0, 8, digest)]) for name, digest in (("first", "ab"), ("then", "cd"))}
    newest, before = manifests(harness, config)
    assert newest.sets == digests and before.sets == {"first": digests["first"]}
    assert {task.split("/")[0] for task in before.trained} == {"first"}


def test_checkpoints_are_committed_together_up_to_so_many_ids() -> None:
    sizes = (2, 1, 1, 5, 0, 3)
    made = [
        Trained(f"1/{version}", f"1/{version - 1}", tuple(f"set/{version}/{n}" for n in range(size)))
        for version, size in enumerate(sizes, 1)
    ]
    joined = list(resuming.together(made, 3))
    assert [(one.name, len(one.ids)) for one in joined] == [("1/2", 3), ("1/3", 1), ("1/4", 5), ("1/6", 3)]
    assert [task for one in joined for task in one.ids] == [task for one in made for task in one.ids]
    begun = [made[0]._replace(settled=1), made[1]]
    assert list(resuming.together(begun, 3)) == begun, "what is committed in part is not joined with what follows"
    assert list(resuming.together([], 3)) == []


@pytest.mark.slow
@pytest.mark.parametrize("damaged", [False, True])
def test_a_commit_that_ended_between_its_steps_goes_on_or_is_undone(
    harness: LearnerHarness, monkeypatch: pytest.MonkeyPatch, damaged: bool
) -> None:
    """A learner dies after the first step of a commit; the checkpoint survives, or is damaged meanwhile."""
    config = harness.config(learner={"checkpoint_updates": 3, "keep_checkpoints": 8})
    store, queue = harness.store(config), harness.queue(config)
    harness.submit(config, PROMPTS)
    harness.work(config)
    with monkeypatch.context() as dying:
        dying.setattr(LearnerQueue, "commit", partialmethod(LearnerQueue.commit, at_once=2))
        dying.setattr(LearnerQueue, "_numbered", dies_between_steps(LearnerQueue._numbered))
        with pytest.raises(InterruptedError):
            train(config, threading.Event())
    newest, *_ = manifests(harness, config)
    before = len(checkpoint.trained_ids(store)) - len(newest.trained)
    assert queue.client.hget(queue.keys.state, "committed") == f"{newest.name} 2".encode()
    assert queue.audit().trained == before + 2
    if damaged:
        store.put(newest.keys[0], b"torn")
    found = newest_whole(store)
    assert found is not None
    resume(queue.learner(), store, RunRules.of(config), found[0])
    assert (queue.audit().ok, queue.audit().trained) == (True, before if damaged else before + len(newest.trained))
    train(config, threading.Event())
    assert trained_once(harness, config)


def dies_between_steps(numbered: Callable[..., Any]) -> Callable[..., Any]:
    """Returns `LearnerQueue._numbered` that fails at the second step of the second commit of several steps."""
    begun: list[str] = []

    def make(self: LearnerQueue, move: str, *args: Any) -> Any:
        if move == "commit" and len(begun) == 2:
            raise InterruptedError
        if move == "commit" and args[0].endswith(" 2"):
            begun.append(args[0])
        return numbered(self, move, *args)

    return make
