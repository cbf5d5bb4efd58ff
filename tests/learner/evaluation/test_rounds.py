"""Rounds of evaluation on a real queue and a real store: when they are asked, and that no result is lost or doubled."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from threading import Event, Thread

import pytest

from echo_queue import failpoints
from echo_queue.connections.storage.object_store import ObjectStore
from echo_queue.evaluation import stored
from echo_queue.queue import Chunk, PromptSet
from echo_queue.records import Version
from echo_queue.records.validation import PATIENCE
from learner.evaluation.open_round import UNSERVED_S
from learner.evaluation.rounds import IDLE_S
from tests.learner.evaluation.rounds_harness import DEADLINE_S, HELD, RoundsHarness
from tests.queue.clients import Clients
from tests.waiting import wait_until

OTHER = {"name": "other", "source": "other.jsonl", "samples": 2, "every_updates": 30}
LARGE, MANY = 600, 50
"""Prompts that one step neither asks nor removes, and looks that are enough to read their answers."""
STEPS = ("evaluate", "scored", "put evaluations", "conclude", "write evaluations")


@pytest.fixture
def run(queue: Clients, store: ObjectStore, tmp_path: Path) -> RoundsHarness:
    return RoundsHarness(queue, store, tmp_path)


class Killed(BaseException):
    """The end of a learner at the step of a test."""


class Killer:
    """Kills right after a step; `raised` says whether it did."""

    def __init__(self, step: str) -> None:
        self.step, self.raised = step, False

    def before(self, step: str, about: object) -> None:
        pass

    def after(self, step: str, about: object, answer: object) -> None:
        if step == self.step:
            self.raised = True
            raise Killed


@pytest.fixture
def unobserved() -> Iterator[None]:
    yield
    failpoints.observer = None


def test_the_first_round_asks_the_first_version_and_its_result_is_told_to_everyone(run: RoundsHarness) -> None:
    run.evaluate()
    (result,) = run.told
    assert (result.evaluation, result.version, result.prompts, result.failed) == ("held", Version(1, 0), HELD, 0)
    assert (result.mean, result.pass_at, result.best) == (0.5, {"1": 0.5, "2": 1.0}, True)
    assert run.written == [result] and run.asked is None
    kept, answered = stored.read(run.store, "held", Version(1, 0))
    assert kept == result and [one.index for one in answered] == list(range(HELD))
    run.look()
    assert run.asked is None, "it is not due again"


def test_nobody_is_asked_before_a_worker_lives(run: RoundsHarness) -> None:
    run.look()
    assert run.asked is None
    run.serve()
    run.look()
    assert run.asked == Version(1, 0)


def test_a_set_that_has_not_arrived_holds_up_no_other(run: RoundsHarness) -> None:
    run.queue.declare(PromptSet("other", "source", order="held_out"), [Chunk(0, 0, 3)])
    run.start(config=run.config(OTHER))
    run.evaluate()
    assert [one.evaluation for one in run.told] == ["held"]


def test_evaluations_that_are_due_together_share_a_round(run: RoundsHarness) -> None:
    run.submit("other", 3, order="held_out")
    run.start(config=run.config(OTHER))
    run.evaluate()
    assert [(one.evaluation, one.round, one.prompts) for one in run.told] == [("held", 1, HELD), ("other", 1, 3)]
    run.update_to(20)
    run.evaluate()
    assert [(one.evaluation, one.update) for one in run.told[2:]] == [("held", 20)]


def test_a_round_is_due_at_multiples_of_every_updates_and_never_at_a_version_that_was_answered(
    run: RoundsHarness,
) -> None:
    run.evaluate()
    for number, due in ((19, False), (23, True), (39, False), (40, True)):
        run.update_to(number)
        run.serve()
        run.look()
        assert (run.asked == run.version) is due
        if due:
            run.answer()
            run.look()
    assert [one.update for one in run.told] == [0, 23, 40]


def test_a_version_that_is_due_is_asked_before_it_is_published(run: RoundsHarness) -> None:
    run.evaluate()
    while run.learner_version < 20:
        run.advance(0)
    for number in (19, 20):
        run.rounds.ask_ahead(Version(1, number))
        assert run.asked == (Version(1, 20) if number == 20 else None)
    run.look()
    run.look(UNSERVED_S + 1)
    assert run.asked == Version(1, 20), "workers may come to it yet"
    run.publish(20)
    run.serve()
    run.answer()
    run.look()
    assert [one.update for one in run.told] == [0, 20]


def test_the_next_round_waits_for_the_one_under_way(run: RoundsHarness) -> None:
    run.evaluate()
    run.update_to(20)
    run.serve()
    run.look()
    run.lease(1, "w1")  # it becomes the keeper
    run.update_to(45)
    run.serve("w2")
    run.look()
    assert run.asked == Version(1, 20)
    run.queue.release("w1", [f"held/2/{index}" for index in range(HELD)])
    run.queue.reclaim()
    run.answer()
    run.look()
    run.look()
    assert run.asked == Version(1, 45)


def test_the_best_mean_is_marked(run: RoundsHarness) -> None:
    run.evaluate()
    run.update_to(20)
    run.evaluate()
    assert [one.best for one in run.told] == [True, False], "an equal mean is no better"


@pytest.mark.parametrize("step", STEPS)
def test_a_learner_killed_at_any_step_loses_and_doubles_no_result(
    run: RoundsHarness, step: str, unobserved: None
) -> None:
    run.serve()
    killer = Killer(step)
    failpoints.observer = killer
    for _ in range(3):
        try:
            run.look()
            run.answer()
        except Killed:
            break
    failpoints.observer = None
    assert killer.raised
    run.start()
    run.serve("w1", run.asked)
    for _ in range(3):
        run.look()
        run.answer()
    assert [(one.evaluation, one.update) for one in run.told] == [("held", 0)]
    assert run.written == run.told and run.asked is None
    assert [number for _, (_, number) in stored.versions(run.store)] == [0]


def test_a_round_of_many_steps_is_asked_and_ended_by_several_learners(run: RoundsHarness, unobserved: None) -> None:
    run.submit("other", LARGE, order="held_out")
    config = run.config().model_copy(update={"evaluation": run.config(OTHER).evaluation[1:]})
    for step in ("evaluate", "conclude"):
        run.start(config=config)
        run.serve("w1", run.asked)
        failpoints.observer = Killer(step)
        with pytest.raises(Killed):
            for _ in range(MANY):
                run.look()
                run.answer()
        failpoints.observer = None
    run.start(config=config)
    run.look()
    assert [(one.update, one.prompts) for one in run.told] == [(0, LARGE)] and run.asked is None


def test_a_round_that_a_killed_learner_had_half_given_up_is_asked_anew_at_once(
    run: RoundsHarness, unobserved: None
) -> None:
    run.submit("other", LARGE, order="held_out")
    config = run.config().model_copy(update={"evaluation": run.config(OTHER).evaluation[1:]})
    run.start(config=config)
    run.serve()
    run.look()
    run.start(config=run.config())
    failpoints.observer = Killer("conclude")
    with pytest.raises(Killed):
        run.look()
    failpoints.observer = None
    run.start(config=config)
    run.serve()
    run.look()
    assert [one.given_up for one in run.told] == ["an earlier learner had begun to end it"]
    run.look()
    assert run.asked == run.version


def test_a_lost_answer_to_the_conclusion_is_no_second_round(run: RoundsHarness, unobserved: None) -> None:
    run.serve()
    run.look()
    run.answer()
    failpoints.observer = Killer("conclude")
    with pytest.raises(Killed):
        run.look()
    failpoints.observer = None
    for _ in range(3):
        run.look()
    assert len(run.told) == 1 and run.written == run.told and run.asked is None


def half_answered(run: RoundsHarness) -> None:
    """Evaluates version 0, and gets two answers of version 20."""
    run.evaluate()
    run.update_to(20)
    run.serve()
    run.look()
    run.answer(most=2)


def test_weights_that_a_restart_abandons_are_evaluated_no_further(run: RoundsHarness) -> None:
    half_answered(run)
    run.start(number=18)
    run.look()
    given_up = run.told[-1]
    assert given_up.version == Version(1, 20) and "lineage 2 goes on from version 18" in given_up.given_up
    run.update_to(20)
    run.evaluate()
    assert [str(one.version) for one in run.told] == ["1.0", "1.20", "2.20"] and run.written == run.told


def test_a_round_goes_on_under_a_learner_that_goes_on_from_its_version(run: RoundsHarness) -> None:
    half_answered(run)
    run.start(number=20)
    run.serve("w1", Version(1, 20))
    run.answer()
    run.look()
    assert [str(one.version) for one in run.told] == ["1.0", "1.20"]
    run.serve()
    run.look()
    assert run.asked is None, "lineage 2 begins with these weights"


def test_a_round_whose_version_nobody_serves_is_given_up_and_asked_anew(run: RoundsHarness) -> None:
    run.evaluate()
    run.update_to(20)
    run.serve()
    run.look()
    run.update_to(21)
    run.serve()
    run.look()
    assert run.asked == Version(1, 20)
    run.look(UNSERVED_S + 1)
    assert run.told[-1].given_up == "no worker serves this version any more"
    run.evaluate()
    assert [one.update for one in run.told] == [0, 20, 21]


def test_a_round_in_which_nothing_moves_is_given_up_and_not_asked_again_at_its_version(run: RoundsHarness) -> None:
    run.serve()
    run.look()
    run.look()
    run.look(DEADLINE_S + 1)
    assert run.told[-1].given_up.startswith("nothing moved for 300 s")
    run.look()
    assert run.asked is None
    run.update_to(1)
    run.evaluate()
    assert [(one.update, bool(one.given_up)) for one in run.told] == [(0, True), (1, False)]


def test_a_round_that_is_not_configured_any_more_leaves_the_queue(run: RoundsHarness) -> None:
    run.serve()
    run.look()
    run.start(config=run.config().model_copy(update={"evaluation": ()}))
    run.look()
    assert run.asked is None and run.told[-1].given_up == "held is not configured any more"


def test_a_redis_that_was_lost_is_told_again_what_the_learner_knows(run: RoundsHarness, tmp_path: Path) -> None:
    run.evaluate()
    run.queue.client.delete(run.queue.keys.evaluations)
    run.start()
    run.update_to(20)
    run.evaluate()
    assert [one.update for one in run.told] == [0, 20]


def test_what_only_the_store_knows_is_known_again(run: RoundsHarness) -> None:
    run.evaluate()
    run.queue.client.delete(run.queue.keys.evaluations)
    (run.directory / "evaluations.jsonl").unlink()
    run.store.put(stored.key_of("held", Version(1, 7)), b"spoiled")
    run.start()
    run.serve()
    run.look()
    assert run.asked is None and [one.update for one in run.written] == [0]


def test_a_worker_that_sends_nothing_but_bad_answers_is_suspended(run: RoundsHarness) -> None:
    run.submit("other", PATIENCE, order="held_out")
    run.start(config=run.config(OTHER))
    run.serve()
    run.look()
    tasks = [task for task in run.lease(1_000) if task.set == "other"]
    groups = [run.group(task, "w1") for task in tasks]
    bad = [replace(one, samples=one.samples[:1]) for one in groups]
    run.queue.complete("w1", bad)
    run.look()
    assert "could not be trained" in next(one.suspended for one in run.queue.status().workers if one.name == "w1")


def settled(run: RoundsHarness, stop: Event) -> Thread:
    """Lets a learner that has trained everything wait for its last version."""
    thread = Thread(target=run.rounds.settle, args=(run.version, stop, lambda: None), daemon=True)
    thread.start()
    wait_until(lambda: run.rounds._settling.last is not None, "the learner to wait")
    return thread


def test_a_learner_that_has_trained_everything_waits_for_the_last_versions_round(run: RoundsHarness) -> None:
    run.evaluate()
    run.update_to(3)
    run.serve()
    run.look()
    assert run.asked is None
    waiting = settled(run, Event())
    run.look()
    assert run.asked == Version(1, 3) and waiting.is_alive()
    run.answer()
    run.look()
    waiting.join(30)
    assert not waiting.is_alive() and [one.update for one in run.told] == [0, 3]


@pytest.mark.parametrize("submitted", [True, False])
def test_it_waits_only_for_what_can_come(queue: Clients, store: ObjectStore, tmp_path: Path, submitted: bool) -> None:
    """A set that nobody submitted is not waited for, and one that is there until no worker came for a long time."""
    run = RoundsHarness(queue, store, tmp_path, submitted=submitted)
    waiting = settled(run, Event())
    run.look()
    if submitted:
        assert waiting.is_alive()
        run.look(DEADLINE_S + 1)
    waiting.join(30)
    assert not waiting.is_alive() and not run.told
    run.serve()
    run.look()
    assert run.asked is None, "the run is about to finish"
    run.rounds.go_on()
    if submitted:
        run.look()
        assert run.asked == Version(1, 0)


def test_a_learner_that_is_told_to_stop_waits_for_no_round(run: RoundsHarness) -> None:
    stop = Event()
    waiting = settled(run, stop)
    stop.set()
    waiting.join(30)
    assert not waiting.is_alive()


def test_a_run_that_is_kept_open_evaluates_its_newest_version_once_it_is_idle(run: RoundsHarness) -> None:
    run.queue.overrule(replace(run.rules, keep_open=True))
    run.evaluate()
    run.update_to(3)
    run.queue.reclaim()
    run.serve()
    run.look()
    assert run.queue.status().waits_for_prompts and run.asked is None
    run.look(IDLE_S + 1)
    assert run.asked == Version(1, 3)
