"""A fleet's promises are broken one by one in a hand-made history, and noticed."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.faults.history import machines
from tests.faults.history.checker import Evidence, judge
from tests.faults.history.machines import Caps, Machine, Machines
from tests.faults.history.test_checker import Writer, a_good_run, kinds

CAPS = Caps(machines=2, usd_per_hour=3.5, prices={"cheap": 1.0, "dear": 2.0})
Change = Callable[[Evidence], Evidence]


def a_fleet() -> Evidence:
    """Two controllers, one after the other, start two machines; the second one dismisses one of them and ends it."""
    written = Writer()
    written.both("c.1", "plan", version=1)
    written.both("c.1", "start machine", {"key": "a"}, key="a")
    written.both("c.2", "plan", version=2)
    written.both("c.2", "start machine", {"key": "b"}, key="b")
    written.both("c.2", "order", version=2, key="rest", note="a")
    written.both("c.2", "end machine", {"key": "a"}, key="a")
    began = (Machine("a", "cheap", 1.0, ("cheap",)), Machine("b", "dear", 2.0, ("cheap", "dear")))
    good = a_good_run()
    return replace(
        good, events=(*good.events, *written.events), machines=Machines(began, Counter({"a": 1}), CAPS)
    )  # fmt: skip


def also(life: str, step: str, answered: bool = True, **facts: object) -> Change:
    """One more operation at the end."""

    def change(evidence: Evidence) -> Evidence:
        written = Writer()
        number = written.attempt(life, step, **facts)
        if answered:
            written.answer(life, step, number)
        later = tuple(replace(event, number=99, time_s=event.time_s + 99) for event in written.events)
        return replace(evidence, events=(*evidence.events, *later))

    return change


def said(**changes: object) -> Change:
    """Machines that said something else."""

    def change(evidence: Evidence) -> Evidence:
        assert evidence.machines
        return replace(evidence, machines=replace(evidence.machines, **changes))  # type: ignore[arg-type]

    return change


def test_a_good_fleet_is_good_and_counted() -> None:
    verdict = judge(a_fleet())
    assert verdict.ok, str(verdict)
    assert "2 machines began, at most 2 at once; 1 dismissed through the queue, 1 ended by the controller; 2 terms" in (
        str(verdict)
    )


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        (said(began=(Machine("a", "cheap", 1.0, ("cheap",)),) * 2), "started twice"),
        (said(began=(Machine("z", "cheap", 1.0, ("cheap",)),)), "started unasked"),
        (said(ended=Counter({"a": 2})), "ended twice"),
        (said(ended=Counter({"b": 1})), "ended unasked"),
        (said(began=(Machine("a", "cheap", 1.0, ("cheap",) * 3),)), "cap exceeded"),
        (said(began=(Machine("a", "dear", 1.0, ("dear",) * 2),)), "cap exceeded"),
        (also("c.1", "plan", version=1), "deposed leader"),
    ],
)
def test_each_broken_promise_of_a_fleet_is_noticed(change: Change, kind: str) -> None:
    assert kinds(change(a_fleet())) == {kind}


def test_what_a_controller_died_at_may_be_done_again() -> None:
    cut_off = also("c.1", "end machine", answered=False, key="a")(a_fleet())
    assert not kinds(said(ended=Counter({"a": 2}))(cut_off))
    assert not kinds(also("c.1", "plan", answered=False, version=1)(a_fleet())), "nobody took that plan"


def test_what_machines_say_is_read_back(tmp_path: Path) -> None:
    assert machines.read(tmp_path, CAPS).began == ()
    machines.note(tmp_path, machines.BEGAN, "a", "cheap", ["cheap"])
    machines.note(tmp_path, machines.ENDED, "a", "cheap")
    found = machines.read(tmp_path, CAPS)
    assert [(one.name, one.pool, one.beside) for one in found.began] == [("a", "cheap", ("cheap",))]
    assert found.ended == {"a": 1}
