"""The controllers of a fleet, dying and two at once, start no machine twice, end none twice, and keep to the caps.

A controller that died while it ended a machine has not said that it did: its successor may then do it again.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from tests.faults.history.checker.evidence import Evidence, Violation
from tests.faults.history.machines import Machines

END, START, PLAN, ORDER = "end machine", "start machine", "plan", "order"


@dataclass(frozen=True)
class FleetCounts:
    """`began`: machines; `dismissed`: those told through the queue to rest or to leave; `ended`: those that their place
    told to end; `terms`: of leaders that noted a plan; `most`: alive at once."""

    began: int
    dismissed: int
    ended: int
    terms: int
    most: int

    def __str__(self) -> str:
        return (
            f"{self.began:,} machines began, at most {self.most} at once; {self.dismissed:,} dismissed through the "
            f"queue, {self.ended:,} ended by the controller; {self.terms:,} terms"
        )


def fleet_counts(evidence: Evidence) -> FleetCounts | None:
    """Returns None for a run without a fleet."""
    machines = evidence.machines
    if machines is None:
        return None
    return FleetCounts(
        began=len(machines.began),
        dismissed=len({name for _, told in evidence.acknowledged(ORDER).values() for name in told.facts.note.split()}),
        ended=len(machines.ended),
        terms=len({attempt.facts.version for _, attempt in evidence.acknowledged(PLAN).values()}),
        most=max((len(machine.beside) for machine in machines.began), default=0),
    )


def fleet(evidence: Evidence) -> Iterator[Violation]:
    """All of a fleet's promises."""
    if evidence.machines is not None:
        yield from _begun(evidence, evidence.machines)
        yield from _ended(evidence, evidence.machines)
        yield from _capped(evidence.machines)
        yield from _fenced(evidence)


def _begun(evidence: Evidence, machines: Machines) -> Iterator[Violation]:
    counted = Counter(machine.name for machine in machines.began)
    if twice := sorted(name for name, count in counted.items() if count > 1):
        yield Violation("started twice", "machines that began more than once", tuple(twice))
    asked = {event.facts.key for event in evidence.attempts(START)}
    if unasked := sorted(counted.keys() - asked):
        yield Violation("started unasked", "machines that no controller started", tuple(unasked))


def _ended(evidence: Evidence, machines: Machines) -> Iterator[Violation]:
    said = {(event.life, event.number) for event in evidence.answers(END)}
    attempts = list(evidence.attempts(END))
    cut_off = Counter(event.facts.key for event in attempts if (event.life, event.number) not in said)
    if twice := sorted(name for name, count in machines.ended.items() if count > 1 + cut_off[name]):
        yield Violation("ended twice", "machines that were ended more often than a controller died at it", tuple(twice))
    if unasked := sorted(machines.ended.keys() - {event.facts.key for event in attempts}):
        yield Violation("ended unasked", "machines that no controller ended", tuple(unasked))


def _capped(machines: Machines) -> Iterator[Violation]:
    caps = machines.caps
    for machine in machines.began:
        usd = sum(caps.prices[pool] for pool in machine.beside)
        if len(machine.beside) > caps.machines or usd > caps.usd_per_hour:
            what = f"{len(machine.beside)} machines for {usd:g} USD/h as {machine.name} began at {machine.time_s:.3f}"
            yield Violation("cap exceeded", what)


def _fenced(evidence: Evidence) -> Iterator[Violation]:
    """No plan is taken of a leader after a later one's was."""
    taken = [(attempt, answer.time_s) for answer, attempt in evidence.acknowledged(PLAN).values()]
    for attempt, _ in taken:
        newest = max((told.facts.version or 0 for told, said_s in taken if said_s < attempt.time_s), default=0)
        if (attempt.facts.version or 0) < newest:
            what = f"a plan of term {attempt.facts.version} was taken after one of term {newest}: {attempt.place}"
            yield Violation("deposed leader", what)
