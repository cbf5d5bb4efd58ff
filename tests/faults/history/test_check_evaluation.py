"""Each promise about rounds of evaluation is broken here in a hand-made history, and noticed."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from echo_queue.evaluation.results import EvaluationResult
from echo_queue.records import Version
from tests.faults.history.checker import Evidence, Kept, KeptRow, Update, judge
from tests.faults.history.facts import KEEPS, Begun, Facts, Generated, Part
from tests.faults.history.test_checker import FINAL, IDS, Writer, a_good_run, holding, kinds

ASKED = Version(1, 1)
HELD = ("held/1/0", "held/1/1", "held/1/2")
BEGUN = Begun(HELD[0], "mark", 1, oldest=1, newest=1, lineage=1)
FACTS = {"ids": HELD[:2], "partials": (BEGUN,), "lineage": 1, "version": 2, "note": KEEPS}


def answer_to(task: str, mark: str = "", version: int = 1) -> Generated:
    mark = mark or f"mark of {task}"
    return Generated(task, mark, "w", 0, version, version, 1, f"1.{version}", said=f"said {mark}")


def a_good_round() -> Evidence:
    """Three held-out prompts: two are answered by version 1.1, while version 1.2 comes, and one is poison."""
    good = a_good_run()
    written = Writer(len(good.events))
    written.both("submit.1", "declare", set="held", order="held_out", epochs=1, parts=(Part(0, 0, 3),))
    written.both("celery.1", "submit", set="held", parts=(Part(0, 0, 3),))
    written.both("learner.1", "evaluate", {"round": 1}, lineage=1, version=1, note="held")
    written.both("w.1", "progress", partials=(BEGUN,))
    written.both("w.2", "lease", FACTS, lineage=1, version=1)
    written.both("w.2", "complete", {"outcomes": ("accepted",) * 2}, groups=tuple(map(answer_to, HELD[:2])))
    written.both("w.3", "lease", {"ids": HELD[2:], "note": KEEPS}, lineage=1, version=1)
    written.both("learner.1", "publish", lineage=1, version=2)
    written.both("learner.1", "scored", {"ids": HELD})
    written.both("learner.1", "conclude", lineage=1, round=1, note="a line")
    rows = (*(KeptRow(index, f"said mark of {HELD[index]}", (float(index),), "") for index in range(2)), FAILED)
    result = EvaluationResult("held", ASKED, 1, 1, prompts=3, samples=1, failed=1, mean=0.5)
    return replace(
        good,
        events=(*good.events, *written.events),
        final=replace(FINAL, asked=3, concluded=3),
        poison=lambda task: task in ("a/0/3", HELD[2]),
        told=(result,),
        kept=(Kept(result, rows),),
    )


FAILED = KeptRow(2, "", (), "the scorer raised")


def leasing_more(evidence: Evidence) -> Evidence:
    """The same, and the last prompt was leased once more, as it had to be."""
    written = Writer()
    written.both("w.4", "lease", {"ids": HELD[2:]}, lineage=1, version=1)
    return replace(evidence, events=(*evidence.events, *written.events))


def a_round() -> Evidence:
    return leasing_more(a_good_round())


def saying(evidence: Evidence, **changes: object) -> Evidence:
    """The same, with another line and another result that says the same."""
    result = replace(evidence.told[0], **changes)  # type: ignore[arg-type]
    return replace(evidence, told=(result,), kept=(replace(evidence.kept[0], result=result),))


def keeping(evidence: Evidence, *rows: KeptRow) -> Evidence:
    return replace(evidence, kept=(replace(evidence.kept[0], rows=rows),))


def completing(evidence: Evidence, *groups: Generated, outcomes: tuple[str, ...] = ("accepted",)) -> Evidence:
    """The same, and a worker completed these as well."""
    written = Writer()
    written.both("w.9", "complete", {"outcomes": outcomes}, groups=groups)
    return replace(evidence, events=(*evidence.events, *written.events))


def then(evidence: Evidence, step: str, said: dict[str, object] | None = None, **facts: object) -> Evidence:
    written = Writer()
    written.both("later.1", step, said, **facts)
    return replace(evidence, events=(*evidence.events, *written.events))


def test_a_good_round_is_good() -> None:
    verdict = judge(a_round())
    assert verdict.ok, str(verdict)
    assert (verdict.submitted, verdict.trained, verdict.dead) == (4, 3, 1), "what is held out is no part of training"
    rounds = verdict.rounds
    assert rounds and (rounds.answered, rounds.overtaken, rounds.given_up) == (1, 1, 0)
    assert (rounds.answers, rounds.failed, rounds.keepers_killed) == (2, 1, 2)
    assert str(rounds) in str(verdict)
    assert judge(a_good_run()).rounds is None


def test_a_keeper_that_left_or_outlived_its_round_was_not_killed() -> None:
    evidence = then(a_round(), "leave")
    lives = {"w.2": "later.1", "w.3": "w.3"}
    gone = tuple(replace(event, life=lives.get(event.life, event.life)) for event in evidence.events)
    rounds = judge(replace(evidence, events=gone)).rounds
    assert rounds and rounds.keepers_killed == 1
    written = Writer()
    written.attempt("w.3", "release")
    events = (*a_round().events, *(replace(event, time_s=99.0) for event in written.events))
    late = replace(a_round(), events=events)
    rounds = judge(late).rounds
    assert rounds and rounds.keepers_killed == 1


@pytest.mark.parametrize(
    "other",
    [{"oldest": 0}, {"newest": 2}, {"lineage": 2}, {"stamp": "1.0 1.1"}, {"stamp": "1.0"}],
    ids=str,
)
def test_an_answer_of_another_version_is_noticed(other: dict[str, object]) -> None:
    groups = (answer_to(HELD[0])._replace(**other), answer_to(HELD[1]))  # type: ignore[arg-type]
    evidence = of_held(a_round(), "complete", False, lambda facts: replace(facts, groups=groups))
    assert "mixed answer" in kinds(evidence)
    refused = of_held(evidence, "complete", True, lambda facts: replace(facts, outcomes=("mixed", "accepted")))
    assert "mixed answer" not in kinds(refused)


def of_held(evidence: Evidence, step: str, answered: bool, change: Callable[[Facts], Facts]) -> Evidence:
    """The same, with other facts in the events of that step that concern the round."""
    lives = {"w.2", "learner.1", "submit.1"}
    first = len(a_good_run().events)
    events = (
        replace(event, facts=change(event.facts))
        if place >= first and event.life in lives and (event.step, event.answered) == (step, answered)
        else event
        for place, event in enumerate(evidence.events)
    )
    return replace(evidence, events=tuple(events))


def test_a_round_asks_workers_of_its_version_alone() -> None:
    other = of_held(a_round(), "lease", False, lambda facts: replace(facts, version=2))
    assert kinds(other) == {"asked of another version"}


def test_a_round_has_one_version() -> None:
    again = then(a_round(), "evaluate", {"round": 1}, lineage=1, version=2, note="held")
    assert "mixed round" in kinds(again)


@pytest.mark.parametrize("other", [{"oldest": 0}, {"newest": 2}, {"lineage": 2}], ids=str)
def test_a_round_goes_on_from_its_own_version_alone(other: dict[str, object]) -> None:
    begun = BEGUN._replace(**other)  # type: ignore[arg-type]
    evidence = of_held(a_round(), "lease", True, lambda facts: replace(facts, partials=(begun,)))
    assert kinds(evidence) == {"mixed partial rollout"}


def test_nothing_held_out_is_trained() -> None:
    evidence = a_round()
    assert "held out and trained" in kinds(holding(evidence, IDS[:2], (IDS[2], HELD[0])))
    update = Update(1, 2, (IDS[2], HELD[0]), {1: 1}, 101.0)
    assert "held out and trained" in kinds(replace(evidence, updates=(evidence.updates[0], update)))
    assert "held out and trained" in kinds(then(evidence, "drain", {"ids": HELD[:1]}, lineage=1))
    assert "held out and trained" in kinds(replace(evidence, dead=evidence.dead | {HELD[0]: "why"}))


def test_nothing_but_what_is_held_out_is_evaluated() -> None:
    assert "trained and evaluated" in kinds(then(a_round(), "scored", {"ids": IDS[:1]}))
    assert "trained and evaluated" in kinds(then(a_round(), "evaluate", {"round": 1}, lineage=1, version=1, note="a"))


def test_a_prompt_that_no_round_asked_is_unheard_of() -> None:
    for strange in ("held/2/0", "held/1/3"):
        lease = {"ids": (strange,)}
        assert kinds(then(a_round(), "lease", lease, lineage=1, version=1)) == {"unheard of"}


def test_a_prompt_is_answered_once() -> None:
    again = completing(a_round(), answer_to(HELD[0], "another"))
    assert kinds(again) == {"answered twice"}
    assert not kinds(then(again, "reject_group", lineage=1, ids=HELD[:1])), "the first answer was bad"
    assert not kinds(completing(a_round(), answer_to(HELD[0], "another"), outcomes=("duplicate",)))


def test_a_round_is_concluded_and_told_once() -> None:
    evidence = a_round()
    silent = replace(evidence, events=tuple(event for event in evidence.events if event.step != "conclude"))
    assert kinds(silent) == {"round left"}
    assert kinds(replace(evidence, final=replace(FINAL, asked=3, concluded=2, scored=1, open=2))) == {"round left"}
    assert kinds(replace(evidence, told=())) >= {"told once"}
    assert kinds(replace(evidence, told=evidence.told * 2)) == {"told once"}
    given_up = replace(evidence.told[0], given_up="lineage 2 goes on from version 0, without these weights")
    assert not kinds(replace(evidence, told=(given_up, *evidence.told))), "its learner had stored it before"


def test_a_round_that_was_given_up_needs_no_results() -> None:
    evidence = a_round()
    given_up = replace(evidence.told[0], given_up="no worker serves this version any more", mean=None)
    evidence = replace(evidence, told=(given_up,), kept=())
    assert not kinds(evidence)
    rounds = judge(evidence).rounds
    assert rounds and (rounds.answered, rounds.given_up) == (0, 1)


def test_what_is_stored_is_what_is_told() -> None:
    evidence = a_round()
    assert kinds(replace(evidence, kept=())) == {"results"}
    line = replace(evidence.told[0], mean=0.6)
    assert kinds(replace(evidence, told=(line,))) == {"results"}
    assert not kinds(replace(evidence, told=(replace(line, mean=0.5, time_s=9.0, seconds=2.0),)))


@pytest.mark.parametrize("wrong", [{"mean": 0.4}, {"mean": None}, {"failed": 0}, {"prompts": 2}], ids=str)
def test_the_figures_are_those_of_the_answers(wrong: dict[str, object]) -> None:
    assert kinds(saying(a_round(), **wrong)) == {"results"}


def test_what_is_stored_is_each_prompt_once_with_an_answer_that_was_accepted() -> None:
    evidence = a_round()
    first, second, failed = evidence.kept[0].rows
    assert kinds(saying(keeping(evidence, first, second), failed=0, prompts=2)) == {"results"}, "one is lost"
    doubled = keeping(evidence, first, first, second, failed)
    assert kinds(saying(doubled, prompts=4, mean=1 / 3)) == {"results"}
    assert kinds(keeping(evidence, first._replace(said="another"), second, failed)) == {"results"}
    assert kinds(keeping(evidence, first, second, failed._replace(reason=" "))) == {"results"}
    late = of_held(evidence, "complete", True, lambda facts: replace(facts, outcomes=("mixed", "accepted")))
    assert kinds(late) == {"results"}, "what was refused is no answer"


def test_poison_is_not_answered() -> None:
    assert kinds(replace(a_round(), poison=lambda task: task in ("a/0/3", *HELD))) == {"poison answered"}


def test_a_prompt_of_a_round_fails_only_when_its_attempts_are_used_up() -> None:
    assert kinds(a_good_round()) == {"failed without a cause"}, "it was leased twice, and may be three times"
