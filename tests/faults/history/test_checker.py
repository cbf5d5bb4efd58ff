"""A check that cannot fail is none: each promise of `checker` is broken here in a hand-made history, and noticed."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from echo_queue.queue import Audit
from tests.faults.history import served_versions
from tests.faults.history.checker import Evidence, Link, Snapshot, Update, Verdict, judge, keeps
from tests.faults.history.facts import Begun, Facts, Generated, Part
from tests.faults.history.recorder import Event
from tests.faults.history.served_versions import Served

FINAL = Audit(
    submitted=4, backlog=0, tasks=0, replay=0, trained=3, dead=1, open=1,
    ready=0, in_hand=0, in_flight=0, evaluating=0, leases=0, leased=0,
    asked=0, evaluation=0, scored=0, concluded=0, lost=0, forged=0,
)  # fmt: skip
IDS = ("a/0/0", "a/0/1", "a/0/2")


class Writer:
    """Events in the order in which they are written, a second apart. Their numbers follow `numbers`."""

    def __init__(self, numbers: int = 0) -> None:
        self.events: list[Event] = []
        self._numbers = numbers

    def attempt(self, life: str, step: str, **facts: object) -> int:
        self._numbers += 1
        return self._write(life, step, self._numbers, False, facts)

    def answer(self, life: str, step: str, number: int, **facts: object) -> None:
        self._write(life, step, number, True, facts)

    def both(self, life: str, step: str, said: dict[str, object] | None = None, **facts: object) -> None:
        self.answer(life, step, self.attempt(life, step, **facts), **(said or {}))

    def _write(self, life: str, step: str, number: int, answered: bool, facts: dict[str, object]) -> int:
        at = float(len(self.events))
        self.events.append(Event(life, len(self.events) + 1, number, at, step, answered, Facts(**facts)))  # type: ignore[arg-type]
        return number


def made(task: str, oldest: int = 0, mark: str = "", lineage: int = 1) -> Generated:
    return Generated(task, mark or f"mark of {task}", "w", 0, oldest, oldest, lineage, f"{lineage}.{oldest}")


def a_good_run() -> Evidence:
    """Four prompts: two updates train three of them, one is dead."""
    written = Writer()
    written.both("submit.1", "declare", set="a", epochs=1, parts=(Part(0, 0, 4),))
    written.both("celery.1", "submit", set="a", parts=(Part(0, 0, 4),))
    written.both("learner.1", "resume", {"lineage": 1, "version": 0}, version=0)
    written.both("w.1", "lease", {"ids": (*IDS, "a/0/3")}, lineage=1, version=0)
    written.both("w.2", "lease", {"ids": ("a/0/3",)}, lineage=1, version=0)
    groups = tuple(map(made, IDS))
    written.both("w.1", "complete", {"outcomes": ("accepted",) * 3}, groups=groups)
    written.both("learner.1", "fetch", {"groups": groups}, ids=IDS)
    written.both("learner.1", "put checkpoints/manifest.json", {"key": key(1)}, key=key(1))
    written.both("learner.1", "commit", lineage=1, ids=IDS[:2])
    written.both("learner.1", "put checkpoints/manifest.json", {"key": key(2)}, key=key(2))
    written.both("learner.1", "commit", lineage=1, ids=IDS[2:])
    return Evidence(
        events=tuple(written.events),
        updates=(Update(1, 1, IDS[:2], {0: 2}, 100.0), Update(1, 2, IDS[2:], {1: 1}, 101.0)),
        chain=(Link("0001/00000001", 1, 1, None, IDS[:2]), Link("0001/00000002", 1, 2, "0001/00000001", IDS[2:])),
        stored=frozenset({"0001/00000001", "0001/00000002"}),
        snapshots=(Snapshot(1.0, replace(FINAL, trained=0, dead=0, open=0, backlog=4)), Snapshot(2.0, FINAL)),
        final=FINAL,
        dead={"a/0/3": "the scorer raised"},
        counts={},
        s=1,
        max_attempts=2,
        vocabulary=40,
        poison=lambda task: task == "a/0/3",
        stamped=True,
        served=Served(Counter({"1.0": 2, "1.1": 1}), (), Counter(anchors=1, differences=1), Counter(store=2, peer=1)),
    )


def key(version: int) -> str:
    return f"checkpoints/0001/{version:08d}/manifest.json"


def kinds(evidence: Evidence) -> set[str]:
    return {violation.kind for violation in judge(evidence).violations}


def without(evidence: Evidence, step: str, answered: bool | None = None) -> Evidence:
    """The same, but those events were never written."""
    kept = (
        event for event in evidence.events
        if event.step != step or (answered is not None and event.answered != answered)
    )  # fmt: skip
    return replace(evidence, events=tuple(kept))


def changed(evidence: Evidence, step: str, answered: bool, change: Callable[[Facts], Facts]) -> Evidence:
    """The same, with other facts in the events of that step."""
    events = (
        replace(event, facts=change(event.facts)) if (event.step, event.answered) == (step, answered) else event
        for event in evidence.events
    )
    return replace(evidence, events=tuple(events))


def holding(evidence: Evidence, *trained: tuple[str, ...]) -> Evidence:
    """The same, with other ids in the checkpoints of the chain."""
    links = zip(evidence.chain, trained, strict=True)
    return replace(evidence, chain=tuple(replace(link, trained=ids) for link, ids in links))


def test_a_good_run_is_good() -> None:
    verdict = judge(a_good_run())
    assert verdict.ok, str(verdict)
    assert (verdict.submitted, verdict.trained, verdict.dead, verdict.updates) == (4, 3, 1, 2)
    assert (verdict.snapshots, verdict.kept, verdict.lags) == (2, 2, {0: 2, 1: 1})


def test_a_submitted_prompt_that_vanished_is_lost() -> None:
    evidence = holding(a_good_run(), IDS[:2], ())
    verdict = judge(evidence)
    assert verdict.lost == 1
    lost = next(violation for violation in verdict.violations if violation.kind == "lost")
    assert lost.ids == ("a/0/2",)
    assert any("→ complete" in line and "a/0/2" in line for line in lost.lines), "its history is shown"
    assert "a/0/2" in str(verdict)


def test_a_declared_chunk_that_never_arrived_is_lost() -> None:
    evidence = changed(
        a_good_run(), "declare", False, lambda facts: replace(facts, parts=(*facts.parts, Part(1, 4, 2)))
    )
    assert kinds(evidence) == {"lost"}


def test_a_declared_chunk_that_was_refused_is_not_lost() -> None:
    evidence = changed(
        a_good_run(), "declare", False, lambda facts: replace(facts, parts=(*facts.parts, Part(1, 4, 2)))
    )
    refusal = Event("celery.1", 99, 99, 3.0, "reject", False, Facts(set="a", parts=(Part(1, 0, 0),)))
    assert not kinds(replace(evidence, events=(*evidence.events, refusal)))


def test_a_submission_that_was_not_acknowledged_may_be_lost() -> None:
    evidence = without(without(a_good_run(), "submit", answered=True), "declare", answered=True)
    nothing = replace(FINAL, submitted=3, dead=0, open=0)
    assert not kinds(replace(evidence, dead={}, final=nothing, snapshots=(Snapshot(1.0, nothing),)))


def test_a_dead_prompt_needs_a_reason() -> None:
    assert kinds(replace(a_good_run(), dead={"a/0/3": " "})) == {"dead without a reason"}


def test_a_history_in_which_nothing_happened_shows_nothing() -> None:
    assert kinds(replace(a_good_run(), snapshots=())) == {"nothing shown"}
    nothing = replace(FINAL, submitted=0, trained=0, dead=0, open=0)
    changes = {"events": (), "updates": (), "chain": (), "stored": frozenset(), "dead": {}, "final": nothing}
    assert kinds(replace(a_good_run(), **changes, snapshots=())) == {"nothing shown"}  # type: ignore[arg-type]


def dead_too(evidence: Evidence, *more: str) -> Evidence:
    """The same, with these ids dead instead of trained, as the queue, the chain and the records agree."""
    dead = evidence.dead | dict.fromkeys(more, "the lease ran out")
    links = [replace(link, trained=tuple(task for task in link.trained if task not in dead)) for link in evidence.chain]
    updates = (
        replace(each, ids=link.trained, lags={each.version - 1: len(link.trained)} if link.trained else {})
        for each, link in zip(evidence.updates, links, strict=True)
    )
    final = replace(evidence.final, trained=evidence.final.trained - len(more), dead=len(dead), open=len(dead))
    found = replace(evidence, dead=dead, chain=tuple(links), updates=tuple(updates), final=final, counts={"late": 9})
    return changed(found, "commit", False, lambda facts: replace(facts, ids=tuple(set(facts.ids) - set(dead))))


def leased(evidence: Evidence, task: str, times: int) -> Evidence:
    written = Writer()
    for number in range(times):
        written.both(f"later.{number}", "lease", {"ids": (task,)}, lineage=1, version=0)
    return replace(evidence, events=(*evidence.events, *written.events))


def test_a_prompt_dies_only_when_its_attempts_are_used_up() -> None:
    evidence = dead_too(a_good_run(), IDS[2])
    assert kinds(evidence) == {"dead without a cause"}, "it was leased once, and may be twice"
    assert not kinds(leased(evidence, IDS[2], 1))


def test_a_lease_that_was_handed_back_costs_no_attempt() -> None:
    evidence = leased(dead_too(a_good_run(), IDS[2]), IDS[2], 1)
    for held, found in (("1", {"dead without a cause"}), ("0", set())):
        written = Writer()
        written.both("later.0", "release", {"note": held}, ids=IDS[2:])
        assert kinds(replace(evidence, events=(*evidence.events, *written.events))) == found


def test_a_revived_prompt_has_all_its_attempts_again() -> None:
    written = Writer()
    written.both("director.1", "revive", ids=("a/0/3",))
    evidence = a_good_run()
    evidence = replace(evidence, events=(*evidence.events, *written.events))
    assert kinds(evidence) == {"dead without a cause"}
    assert not kinds(leased(evidence, "a/0/3", 2))


def test_a_lease_that_a_worker_died_of_may_be_untold() -> None:
    evidence = dead_too(a_good_run(), IDS[2])
    written = Writer()
    written.attempt("w.9", "lease", lineage=1, version=0)
    assert not kinds(replace(evidence, events=(*evidence.events, *written.events)))
    never = replace(evidence, max_attempts=6, events=(*evidence.events, *written.events))
    assert kinds(never) == {"dead without a cause"}, "but not more than were asked for"


def test_a_prompt_may_die_of_spoiled_tokens() -> None:
    evidence = dead_too(a_good_run(), IDS[2])
    spoiled = (*map(made, IDS[:2]), made(IDS[2])._replace(highest=40))
    assert not kinds(changed(evidence, "complete", False, lambda facts: replace(facts, groups=spoiled)))


def test_few_may_die_of_bad_luck() -> None:
    evidence = a_good_run()
    assert not kinds(replace(evidence, poison=lambda _: False))
    written = Writer()
    more = tuple(f"a/0/{number}" for number in range(4, 10))
    written.both("celery.1", "submit", set="a", parts=(Part(1, 4, len(more)),))
    events = (*evidence.events, *written.events)
    evidence = replace(evidence, events=events, dead=evidence.dead | dict.fromkeys(more, "the lease ran out"))
    for task in more:
        evidence = leased(evidence, task, 2)
    assert kinds(evidence) >= {"too many dead"}
    assert "too many dead" not in kinds(replace(evidence, poison=lambda task: task not in IDS))


def test_poison_cannot_be_trained() -> None:
    assert kinds(replace(a_good_run(), poison=lambda _: True)) == {"poison trained"}


def test_tensors_under_the_wrong_label_are_noticed() -> None:
    for stamp in ("1.1", "2.0", ""):
        groups = (made(IDS[0])._replace(stamp=stamp), *map(made, IDS[1:]))
        other = changed(a_good_run(), "complete", False, lambda facts, now=groups: replace(facts, groups=now))  # type: ignore[misc]
        assert kinds(other) - {"loaded", "abandoned weights"} == {"other weights"}
        assert not kinds(replace(other, stamped=False, served=None))


def test_weights_that_are_not_what_was_published_are_noticed() -> None:
    evidence = a_good_run()
    assert evidence.served
    torn = replace(evidence.served, wrong=("1.0 differs in embed",))
    assert kinds(replace(evidence, served=torn)) == {"loaded"}
    unseen = replace(evidence.served, swaps=Counter({"1.1": 1}))
    assert kinds(replace(evidence, served=unseen)) == {"loaded"}


def test_what_a_worker_loads_and_fetches_is_read_back(tmp_path: Path) -> None:
    (tmp_path / "served").write_text("1.0 as published\n1.1 as published\n1.1 as published\n1.2 differs in a, b\n")
    (tmp_path / "fetched").write_text("0001.00000000/full 900 0\n0001.00000001/from-0001.00000000 20 80\n")
    seen = served_versions.read(tmp_path)
    assert seen.swaps == {"1.0": 1, "1.1": 2} and seen.wrong == ("1.2 differs in a, b",)
    assert seen.routes == {"anchors": 1, "differences": 1} and seen.bytes == {"store": 920, "peer": 80}


def test_an_id_that_was_never_submitted_is_unheard_of() -> None:
    assert "unheard of" in kinds(holding(a_good_run(), IDS[:2], (IDS[2], "b/0/0")))
    assert "unheard of" in kinds(holding(a_good_run(), IDS[:2], (IDS[2], "a/0/9")))
    assert "unheard of" in kinds(holding(a_good_run(), IDS[:2], (IDS[2], "a/1/0"))), "there is one epoch"
    leased = changed(a_good_run(), "lease", True, lambda facts: replace(facts, ids=(*facts.ids, "b/0/0")))
    assert kinds(leased) == {"unheard of"}


def test_a_group_that_nobody_completed_is_unheard_of() -> None:
    forged = changed(
        a_good_run(),
        "fetch",
        True,
        lambda facts: replace(facts, groups=(*facts.groups[:2], made(IDS[2], mark="forged"))),
    )
    assert kinds(forged) == {"unheard of", "record"}, "its lag is unknown too"
    assert "unheard of" in kinds(without(a_good_run(), "fetch")), "trained without having been handed out"
    assert "unheard of" in kinds(without(a_good_run(), "complete"))


def test_an_id_in_two_checkpoints_is_trained_twice() -> None:
    verdict = judge(holding(a_good_run(), IDS[:2], (IDS[2], IDS[0])))
    assert verdict.duplicated == 1
    assert "trained twice" in {violation.kind for violation in verdict.violations}


def test_an_id_cannot_be_trained_and_dead() -> None:
    evidence = a_good_run()
    assert "trained and dead" in kinds(replace(evidence, dead={**evidence.dead, IDS[0]: "why"}))


def test_a_lag_beyond_s_is_noticed_whatever_the_record_says() -> None:
    verdict = judge(replace(a_good_run(), s=0))
    assert verdict.beyond_s == 1
    assert {violation.kind for violation in verdict.violations} == {"beyond S"}
    lied = replace(
        a_good_run(), s=0, updates=(Update(1, 1, IDS[:2], {0: 2}, 100.0), Update(1, 2, IDS[2:], {0: 1}, 101.0))
    )
    assert kinds(lied) == {"beyond S", "record"}


def test_a_group_that_is_trained_again_beyond_s_is_noticed() -> None:
    good = a_good_run()
    first, second = good.updates
    assert not kinds(replace(good, updates=(first, replace(second, reused_lags=[1]))))
    assert kinds(replace(good, updates=(first, replace(second, reused_lags=[good.s + 1])))) == {"beyond S"}


def test_the_oldest_token_counts_not_what_was_handed_out() -> None:
    """The learner was handed a group that claims to be fresh; who made it wrote down that it was not."""
    evidence = changed(
        a_good_run(),
        "fetch",
        True,
        lambda facts: replace(facts, groups=tuple(made(each.id, 1) for each in facts.groups)),
    )
    assert not kinds(evidence), "history decides"
    assert judge(evidence).lags == {0: 2, 1: 1}


def test_weights_that_a_fork_abandoned_may_not_be_trained() -> None:
    """Lineage 2 begins at version 0; the group was made by version 1 of lineage 1."""
    evidence = a_good_run()
    written = Writer()
    written.both("learner.2", "resume", {"lineage": 2, "version": 0}, version=0)
    written.both("learner.2", "fetch", {"groups": (made(IDS[0], 1),)}, ids=IDS[:1])
    evidence = changed(
        evidence, "complete", False,
        lambda facts: replace(facts, groups=(made(IDS[0], 1), *facts.groups[1:])),
    )  # fmt: skip
    evidence = replace(
        evidence,
        events=(*evidence.events, *written.events),
        updates=(Update(2, 2, IDS[:1], {0: 1}, 100.0),),
    )
    assert "abandoned weights" in kinds(evidence)


def test_no_token_of_abandoned_weights_may_be_trained() -> None:
    """Lineage 2 begins at version 0; what version 1 of lineage 1 had begun, version 2 of lineage 2 went on with."""
    continued = made(IDS[0], 1, lineage=2)._replace(newest=2, stamp="1.1 2.2")
    written = Writer()
    written.both("learner.2", "resume", {"lineage": 2, "version": 0}, parent=1, version=0)
    written.both("learner.2", "fetch", {"groups": (continued,)}, ids=IDS[:1])
    evidence = changed(
        a_good_run(), "complete", False,
        lambda facts: replace(facts, groups=(continued, *facts.groups[1:])),
    )  # fmt: skip
    evidence = replace(
        evidence, s=2, events=(*evidence.events, *written.events), updates=(Update(2, 3, IDS[:1], {1: 1}, 100.0),)
    )
    assert "abandoned weights" in kinds(evidence)
    own = continued._replace(oldest=2, stamp="2.2")
    evidence = changed(evidence, "complete", False, lambda facts: replace(facts, groups=(own, *facts.groups[1:])))
    assert "abandoned weights" not in kinds(evidence)


PARTIALS = Begun(IDS[0], "mark", 5, oldest=1, newest=1, lineage=1)


def with_a_partial(evidence: Evidence, stored: Begun, leased: Begun) -> Evidence:
    """One worker stores how far it is with a task, and another is handed it."""
    written = Writer()
    written.both("w.1", "progress", partials=(stored,))
    answer = {"ids": (leased.id,), "partials": (leased,), "lineage": 1, "version": 2}
    written.both("w.2", "lease", answer, lineage=1, version=0)
    return replace(evidence, events=(*evidence.events, *written.events))


def test_nobody_goes_on_from_what_was_never_stored() -> None:
    evidence = with_a_partial(a_good_run(), PARTIALS, PARTIALS)
    assert not kinds(evidence) and judge(evidence).continued == 5
    assert kinds(with_a_partial(a_good_run(), PARTIALS, PARTIALS._replace(mark="other"))) == {"unheard of"}
    assert kinds(with_a_partial(a_good_run(), PARTIALS._replace(id=IDS[1]), PARTIALS)) == {"unheard of"}, (
        "of another task"
    )
    later = changed(evidence, "progress", False, lambda facts: replace(facts, partials=()))
    assert kinds(later) == {"unheard of"}


def test_nobody_goes_on_from_what_is_too_old_or_left_behind() -> None:
    old = PARTIALS._replace(oldest=0)
    assert kinds(with_a_partial(a_good_run(), old, old)) == {"stale partial rollout"}
    other = PARTIALS._replace(newest=1, lineage=2)
    assert kinds(with_a_partial(a_good_run(), other, other)) == {"abandoned weights"}
    evidence = with_a_partial(a_good_run(), other, other)
    unknown = changed(evidence, "lease", True, lambda facts: replace(facts, lineage=3))
    assert not kinds(unknown), "a learner that died before it could write down where it began"


def test_what_a_worker_goes_on_from_itself_is_not_continued_by_another() -> None:
    evidence = with_a_partial(a_good_run(), PARTIALS, PARTIALS)
    mine = tuple(replace(event, life="w.1") if event.step == "lease" else event for event in evidence.events)
    assert judge(replace(evidence, events=mine)).continued == 0


def test_a_spoiled_partial_is_dropped_before_its_task_is_completed() -> None:
    spoiled = PARTIALS._replace(highest=40)
    evidence = with_a_partial(a_good_run(), spoiled, PARTIALS)
    assert not kinds(evidence), "who was handed it may have died of something else"
    written = Writer()
    written.both("w.2", "complete", {"outcomes": ("duplicate",)}, groups=(made(IDS[0]),))
    believed = replace(evidence, events=(*evidence.events, *written.events))
    assert kinds(believed) == {"bad partial rollout"}
    written.both("w.2", "discard", {"note": "1"}, ids=IDS[:1])
    dropped = judge(replace(evidence, events=(*evidence.events, *written.events)))
    assert dropped.ok and (dropped.dropped, dropped.continued) == (1, 0)


def test_tasks_handed_back_and_rewinds_are_counted() -> None:
    evidence, written = a_good_run(), Writer()
    written.both("w.1", "release", {"note": "3"}, ids=IDS)
    written.both("rewinder.1", "resume", {"lineage": 2, "version": 0, "parent": 1}, version=0, parent=1)
    verdict = judge(replace(evidence, events=(*evidence.events, *written.events)))
    assert (verdict.handed_back, verdict.rewound, verdict.lineages) == (3, 1, 2)


def test_a_completion_that_was_refused_may_not_be_trained() -> None:
    refused = ("late", "accepted", "accepted")
    evidence = changed(a_good_run(), "complete", True, lambda facts: replace(facts, outcomes=refused))
    assert kinds(evidence) == {"refused"}


def test_a_completion_may_be_unknown_only_once_its_group_is_committed() -> None:
    """Its reply was lost, and it was sent again."""
    unknown = ("unknown",) * 3
    evidence = changed(a_good_run(), "complete", True, lambda facts: replace(facts, outcomes=unknown))
    assert kinds(evidence) == {"refused"}
    late = (replace(event, time_s=50.0) if event.facts.outcomes else event for event in evidence.events)
    assert not kinds(replace(evidence, events=tuple(late)))


def test_a_checkpoint_holds_what_its_updates_recorded() -> None:
    evidence = a_good_run()
    assert kinds(replace(evidence, updates=evidence.updates[:1])) == {"record"}
    assert kinds(holding(evidence, (IDS[1], IDS[0]), IDS[2:])) == {"record"}, "in another order"
    assert "record" in kinds(replace(evidence, updates=(*evidence.updates, evidence.updates[1])))


def test_an_acknowledged_checkpoint_stays() -> None:
    assert kinds(replace(a_good_run(), stored=frozenset({"0001/00000001"}))) == {"checkpoint gone"}


def test_what_was_committed_is_trained_unless_it_was_taken_back() -> None:
    evidence = replace(a_good_run(), chain=a_good_run().chain[:1])
    assert "committed and not trained" in kinds(evidence)
    back = Event("learner.2", 99, 99, 50.0, "uncommit", False, Facts(ids=IDS[2:]))
    assert "committed and not trained" not in kinds(replace(evidence, events=(*evidence.events, back)))


@pytest.mark.parametrize(
    "broken",
    [
        {"submitted": 5},
        {"trained": 2},
        {"open": 2},
        {"in_flight": 1},
        {"leases": 1},
        {"ready": 1},
        {"in_hand": 1},
        {"lost": 1},
        {"backlog": 1},
        {"asked": 1},
        {"evaluating": 1},
        {"evaluation": 1, "asked": 1},
        {"scored": 1, "open": 2},
    ],
    ids=str,
)
def test_one_snapshot_that_breaks_the_identity_is_enough(broken: dict[str, int]) -> None:
    audit = replace(FINAL, **broken)
    assert not keeps(audit)
    evidence = a_good_run()
    verdict = judge(replace(evidence, snapshots=(*evidence.snapshots[:1], Snapshot(2.0, audit), Snapshot(3.0, FINAL))))
    assert (verdict.snapshots, verdict.kept) == (3, 2)
    assert "identity" in {violation.kind for violation in verdict.violations}


def test_what_is_submitted_never_becomes_less() -> None:
    more = replace(FINAL, submitted=9, backlog=5)
    assert kinds(replace(a_good_run(), snapshots=(Snapshot(1.0, more), Snapshot(2.0, FINAL)))) == {"submitted fell"}


def test_the_queue_counts_what_history_counts() -> None:
    assert "accounting" in kinds(replace(a_good_run(), final=replace(FINAL, submitted=5, backlog=1)))
    assert "accounting" in kinds(replace(a_good_run(), final=replace(FINAL, trained=2, replay=1, open=2)))
    assert "accounting" in kinds(replace(a_good_run(), final=replace(FINAL, submitted=3, dead=0, open=0)))


def test_an_accepted_group_is_trained_or_sent_back_with_a_cause() -> None:
    evidence = a_good_run()
    written = Writer()
    written.both(
        "w.2", "complete", {"outcomes": ("accepted",)}, groups=(made(IDS[0], mark="other")._replace(worker="v"),)
    )
    evidence = replace(evidence, events=(*evidence.events, *written.events))
    assert kinds(evidence) == {"accounting"}
    assert not kinds(replace(evidence, counts={"late": 1}))


def test_a_verdict_can_be_read() -> None:
    told = str(judge(replace(a_good_run(), s=0)))
    assert "VIOLATIONS" in told
    assert "beyond S: update 1.2 trained groups of lag 1" in told
    assert isinstance(judge(a_good_run()), Verdict)
