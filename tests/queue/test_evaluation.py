"""Rounds of evaluation: who answers, which answers count, what becomes of a round. Each move keeps the identities."""

from dataclasses import replace

import pytest

from echo_queue.errors import FencedError, PromptError
from echo_queue.queue import Chunk, Evaluations, Outcome, PromptSet
from echo_queue.records import PartialGroup, Task, Version
from tests.queue.clients import Clients
from tests.queue.queue_harness import RULES, QueueHarness, group_of, let_pass, partial_of

HELD = 6


@pytest.fixture
def harness(queue: Clients) -> QueueHarness:
    """Forty prompts to train, of which six are admitted at once, and two held-out sets of six and three."""
    harness = QueueHarness(queue, replace(RULES, s=2))
    harness.submit("held", HELD, chunk=4, order="held_out")
    harness.submit("other", 3, order="held_out")
    return harness


def begin(harness: QueueHarness, *sets: str) -> int:
    """Begins a round at the published version."""
    number = harness.queue.evaluate(harness.version.lineage, harness.version, *(sets or ("held",)))
    harness.check()
    assert number is not None
    return number


def asked(tasks: tuple[Task, ...]) -> tuple[Task, ...]:
    return tuple(task for task in tasks if task.version is not None)


def answer(harness: QueueHarness, tasks: tuple[Task, ...], worker: str = "w1") -> list[Outcome]:
    """Completes tasks of the round with what its version has drawn."""
    groups = [group_of(task, worker, task.version) for task in tasks if task.version]
    outcomes = harness.queue.complete(worker, groups)
    harness.check()
    return outcomes


def newer(harness: QueueHarness) -> None:
    """Publishes one more version, without an update."""
    harness.advance(0)
    harness.publish(harness.learner_version)


def test_a_held_out_set_is_never_trained(queue: Clients) -> None:
    harness = QueueHarness(queue, prompts=4)
    harness.submit("held", HELD, order="held_out")
    for _ in range(2):
        harness.round()
    status = queue.status()
    assert (status.submitted, status.trained, status.backlog) == (4, 4, 0)
    assert harness.drain(2).exhausted
    assert queue.finish(harness.version.lineage)


def test_a_round_asks_every_prompt_of_its_sets_once(harness: QueueHarness) -> None:
    number = begin(harness, "held", "other")
    tasks = asked(harness.lease(1000))
    assert [(task.set, task.index) for task in tasks] == [("held", i) for i in range(6)] + [
        ("other", i) for i in range(3)
    ]
    assert {task.version for task in tasks} == {harness.version}
    assert [task.shard.first for task in tasks[:HELD]] == [0, 0, 0, 0, 4, 4]
    assert set(answer(harness, tasks)) == {Outcome.accepted}
    scored = harness.queue.scored(0)
    assert [(one.set, one.index, one.group is not None) for one in scored] == [
        (task.set, task.index, True) for task in tasks
    ]
    under_way = harness.queue.status().evaluation
    assert under_way is not None and under_way.answered and under_way.sets == ("held", "other")
    harness.queue.conclude(0, number, b'{"evaluation": "held"}', b"{}")
    harness.check()
    assert harness.queue.status().evaluation is None
    assert Evaluations(harness.queue.caller).lines() == [b'{"evaluation": "held"}', b"{}"]
    harness.queue.conclude(0, number, b"again")
    assert len(Evaluations(harness.queue.caller).lines()) == 2


def test_a_large_round_is_asked_and_removed_in_steps(queue: Clients) -> None:
    harness = QueueHarness(queue, prompts=0)
    harness.submit("held", 1200, chunk=500, order="held_out")
    number = begin(harness)
    status = queue.status().evaluation
    assert status is not None and (status.prompts, status.waiting) == (1200, 1200)
    assert answer(harness, harness.lease(100)) == [Outcome.accepted] * 100
    queue.conclude(0, number)
    harness.check()
    audit = queue.audit()
    assert (audit.asked, audit.concluded, audit.open) == (1200, 1200, 0)


def test_a_round_begins_once_and_only_with_sets_that_are_there(harness: QueueHarness) -> None:
    queue = harness.queue
    queue.declare(PromptSet("late", "source", order="held_out"), [Chunk(0, 0, 4)])
    assert queue.evaluate(0, harness.version, "late") is None
    assert queue.evaluate(0, harness.version, "a") is None, "a set to train on"
    assert queue.evaluate(0, harness.version, "nowhere") is None
    number = begin(harness)
    assert begin(harness) == number
    assert queue.evaluate(0, harness.version, "other") is None, "another round is under way"
    queue.conclude(0, number)
    assert begin(harness, "other") == number + 1


def test_only_who_serves_the_version_is_asked(harness: QueueHarness) -> None:
    begin(harness)
    behind = Version(harness.version.lineage, 7)
    assert not asked(harness.lease(1000, "other", behind))
    newer(harness)
    assert not asked(harness.lease(1000, "swapped"))


def test_training_goes_first_while_the_version_is_the_newest_but_not_at_a_keeper(harness: QueueHarness) -> None:
    begin(harness)
    keeper, helper = harness.leased(2, "keeper"), harness.leased(4, "helper")
    assert keeper.keeps and len(asked(keeper.tasks)) == 2
    assert not helper.keeps and not asked(helper.tasks)
    rest = harness.lease(1000, "helper")
    assert len(asked(rest)) == HELD - 2 and rest[-1].version, "free seats, behind all training tasks"


def test_a_keeper_answers_alone_once_others_are_ahead(harness: QueueHarness) -> None:
    begin(harness)
    old = harness.version
    first = harness.lease(2, "keeper")
    newer(harness)
    rest = harness.leased(1000, "keeper", old)
    assert rest.keeps and len(rest.tasks) == HELD - 2 and rest.tasks == asked(rest.tasks)
    waiting = harness.leased(5, "keeper", old)
    assert waiting.keeps and not waiting.tasks, "what runs elsewhere may come back"
    assert set(answer(harness, first + rest.tasks, "keeper")) == {Outcome.accepted}
    after = harness.leased(5, "keeper", old)
    assert not after.keeps and not asked(after.tasks)


def test_a_keeper_that_fell_silent_is_replaced(harness: QueueHarness) -> None:
    harness.queue.overrule(replace(RULES, s=2, lease_ms=200))
    begin(harness)
    old = harness.version
    assert harness.leased(2, "keeper").keeps
    assert not harness.leased(0, "next").keeps
    newer(harness)
    for _ in range(8):  # the queue's clock goes on from sweep to sweep
        let_pass(harness.queue, 0.06)
        harness.queue.reclaim()
    taken = harness.leased(1000, "next", old)
    assert taken.keeps and len(taken.tasks) == HELD


def test_a_keeper_that_serves_another_version_is_replaced(harness: QueueHarness) -> None:
    begin(harness)
    old = harness.version
    assert harness.leased(2, "keeper").keeps
    newer(harness)
    assert not harness.leased(0, "keeper").keeps
    taken = harness.leased(1000, "next", old)
    assert taken.keeps and len(taken.tasks) == HELD - 2


def test_a_share_of_the_workers_keeps_the_version(harness: QueueHarness) -> None:
    harness.queue.overrule(replace(RULES, s=2, evaluation_share=0.5))
    harness.queue.client.zadd(harness.queue.keys.workers, {f"w{number}": 9e12 for number in range(5)})
    begin(harness)
    assert [harness.leased(1, f"w{number}").keeps for number in range(5)] == [True, True, False, False, False]


@pytest.mark.parametrize("lineage, oldest, number", [(0, 0, 1), (0, 1, 1), (1, 0, 0)])
def test_an_answer_of_any_other_version_is_refused_and_asked_again(
    harness: QueueHarness, lineage: int, oldest: int, number: int
) -> None:
    begin(harness)
    (task, *_) = harness.lease(1)
    group = group_of(task, "w1", Version(lineage, number), oldest)
    assert harness.queue.complete("w1", [group]) == [Outcome.mixed]
    harness.queue.reclaim()
    harness.check()
    assert not harness.queue.scored(0) and harness.count("mixed_completion") == 1
    assert len(asked(harness.lease(1000))) == HELD


def test_the_first_answer_wins_and_repeats_are_recognised(harness: QueueHarness) -> None:
    number = begin(harness)
    (task, *_) = harness.lease(1)
    harness.expire()
    (again,) = (one for one in harness.lease(1000, "w2") if one.id == task.id)
    assert (again.attempt, again.version) == (1, task.version)
    assert answer(harness, (task,)) == [Outcome.accepted]
    assert answer(harness, (task,)) == [Outcome.accepted], "its answer was lost"
    assert answer(harness, (again,), "w2") == [Outcome.duplicate]
    harness.queue.conclude(0, number)
    assert answer(harness, (again,), "w2") == [Outcome.unknown]
    assert harness.count("answered") == 1


def test_a_task_that_fails_in_all_attempts_is_told_with_its_reason(harness: QueueHarness) -> None:
    begin(harness)
    for attempt in range(RULES.max_attempts):
        (task, *_) = (one for one in harness.lease(1000) if one.id == "held/1/0")
        assert task.attempt == attempt
        assert harness.queue.fail("w1", task.id, "no answer")
        harness.queue.reclaim()
        harness.check()
    (failed,) = harness.queue.scored(0)
    assert failed.group is None and failed.reason.endswith("no answer") and failed.index == 0
    assert answer(harness, (task,)) == [Outcome.duplicate]
    assert harness.queue.status().dead == 0


def test_prompts_that_a_suspended_worker_has_failed_are_asked_again(harness: QueueHarness) -> None:
    begin(harness)
    for _ in range(RULES.max_attempts):
        (task, *_) = (one for one in harness.lease(1000) if one.id == "held/1/0")
        harness.queue.fail("w1", task.id, "no answer")
        harness.queue.reclaim()
    assert [one.task for one in harness.queue.scored(0)] == [task.id]
    assert harness.queue.learner(0).suspend("w1", "bad groups", [task.id, "held/1/1"]) == 1
    harness.queue.reclaim()
    harness.check()
    (again, *_) = (one for one in harness.lease(1000, "w2") if one.id == task.id)
    assert (again.attempt, again.version) == (0, task.version)
    assert not harness.queue.scored(0)


def test_leases_of_a_round_are_renewed_and_handed_back(harness: QueueHarness) -> None:
    begin(harness)
    tasks = asked(harness.lease(1000))
    held = {task.id: 0 for task in tasks}
    assert harness.queue.renew("w1", held) == []
    harness.check()
    assert harness.queue.release("w1", list(held)) == HELD
    assert harness.queue.renew("w1", held) == sorted(held)
    harness.queue.reclaim()
    harness.check()
    again = asked(harness.lease(1000, "w2"))
    assert [task.attempt for task in again] == [0] * HELD


def test_updates_and_restarts_cancel_nothing_of_a_round(harness: QueueHarness) -> None:
    begin(harness)
    tasks = harness.lease(1000)
    for _ in range(4):
        newer(harness)
    harness.queue.resume(Version(0, harness.learner_version))
    harness.queue.reclaim()
    harness.check()
    assert set(answer(harness, asked(tasks))) == {Outcome.accepted}


def test_a_partial_answer_is_continued_by_its_version_alone(harness: QueueHarness) -> None:
    begin(harness)
    (task, *_) = harness.lease(1)
    sample = partial_of(0)
    harness.queue.progress("w1", [PartialGroup(task.id, 0, (sample, sample))])
    harness.expire()
    lease = harness.leased(1000, "w2")
    assert task.id in lease.partials
    other = partial_of(5)
    harness.queue.progress("w2", [PartialGroup(task.id, 0, (other, other))])
    harness.expire()
    assert task.id not in harness.leased(1000, "w3").partials


def test_what_is_left_of_a_round_that_is_given_up_is_dropped(harness: QueueHarness) -> None:
    number = begin(harness)
    tasks = asked(harness.lease(1000))
    assert answer(harness, tasks[:2]) == [Outcome.accepted] * 2
    harness.queue.conclude(0, number)
    harness.check()
    assert sorted(harness.queue.renew("w1", {task.id: 0 for task in tasks})) == sorted(task.id for task in tasks)
    assert answer(harness, tasks[2:]) == [Outcome.unknown] * (HELD - 2)


def test_stored_answers_leave_the_store_with_their_round(spilling: Clients) -> None:
    harness = QueueHarness(spilling, prompts=0)
    harness.submit("held", HELD, order="held_out")
    number = begin(harness)
    answer(harness, harness.lease(1000))
    scored = spilling.scored(0)
    assert all(one.group for one in scored) and len(scored) == HELD
    spilling.conclude(0, number)
    assert not list(spilling.payloads._store.list("replay/"))  # type: ignore[union-attr]


def test_an_earlier_learner_neither_begins_nor_ends_a_round(harness: QueueHarness) -> None:
    number = begin(harness)
    harness.queue.resume(harness.version)
    with pytest.raises(FencedError):
        harness.queue.conclude(0, number)
    with pytest.raises(FencedError):
        harness.queue.evaluate(0, harness.version, "held")


def test_an_answer_that_a_worker_made_up_by_hand_is_not_read(harness: QueueHarness) -> None:
    begin(harness)
    queue = harness.queue
    task, *_ = harness.lease(1)
    for _ in range(40):
        queue.client.xadd(queue.keys.scored, {"id": "held/1/1", "set": "held", "index": "1", "reason": "made up"})
    queue.complete("w1", [group_of(task, "w1", harness.version)])
    assert [one.task for one in queue.scored(0)] == [task.id]
    assert not queue.audit().ok
    queue.conclude(0, 1)
    assert queue.audit().unasked == 0 and queue.audit().forged == 40


def test_other_prompts_under_the_name_of_a_held_out_set_are_refused(harness: QueueHarness) -> None:
    with pytest.raises(PromptError):
        harness.queue.declare(PromptSet("held", "source", order="held_out"), [Chunk(0, 0, 7, "other")])
    with pytest.raises(PromptError):
        harness.queue.declare(PromptSet("held", "source"), [Chunk(0, 0, 4), Chunk(1, 4, 2)])
