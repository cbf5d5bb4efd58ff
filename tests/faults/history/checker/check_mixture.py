"""The shares of a mixture: what is admitted keeps to the weights of the components, as long as each has prompts.

Judged are stretches of snapshots in which no component ran out: of none more was admitted between two snapshots than it
had in the backlog at the first. Prompts that are trained anew count as well, so a component may be owed up to a batch
once a checkpoint was left behind.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tests.faults.history.checker.evidence import Evidence, Snapshot, Violation

MOST_OFF, DEBT_MIN = 3.0, 8


@dataclass(frozen=True)
class ShareCounts:
    """Stretches that were judged, the prompts that were admitted in them, and how far one was off a share at most."""

    stretches: int
    admitted: int
    most_off: float

    def __str__(self) -> str:
        off = f"at most {self.most_off:.1f} off a share"
        return f"{self.admitted:,} prompts admitted in {self.stretches} stretches without a lack, {off}"


def share_counts(evidence: Evidence) -> ShareCounts | None:
    """Returns what was judged; None of a run without a mixture."""
    if not evidence.components:
        return None
    judged = list(stretches(evidence.snapshots))
    admitted = sum(_admitted(*stretch).total() for stretch in judged)
    return ShareCounts(len(judged), admitted, max((off(*stretch) for stretch in judged), default=0.0))


def shares(evidence: Evidence) -> Iterator[Violation]:
    """Each stretch has each component's share, and the counters have all that was ever leased."""
    for first, last in stretches(evidence.snapshots):
        debts = 2 * max(evidence.batch, DEBT_MIN) if last.undone else 0
        if (most := off(first, last)) > MOST_OFF + debts:
            what = f"{most:.1f} prompts off a share of {dict(_admitted(first, last))} at {first.time_s:.0f} s"
            yield Violation("share", what)
    counted = {one.name: one.admitted for one in evidence.components}
    leased = Counter(_component(task) for task in evidence.leased if not evidence.is_held_out(task))
    for name, tasks in leased.items() if counted else ():
        if tasks > counted.get(name, 0):
            yield Violation("share", f"{tasks} tasks of {name} were leased, of {counted.get(name, 0)} admitted")
    if counted and (total := sum(counted.values())) != evidence.counts.get("admitted", 0):
        what = f"{total} prompts of components were admitted, of {evidence.counts.get('admitted', 0)}"
        yield Violation("share", what)


def stretches(snapshots: Sequence[Snapshot]) -> Iterator[tuple[Snapshot, Snapshot]]:
    """Yields the first and the last snapshot of each stretch in which no component ran out."""
    first: Snapshot | None = None
    last: Snapshot | None = None
    for snapshot in snapshots:
        if first and last and not _without_lack(last, snapshot):
            yield from [(first, last)] if first is not last else []
            first = None
        first, last = first or snapshot, snapshot
    if first and last and first is not last:
        yield first, last


def _without_lack(before: Snapshot, after: Snapshot) -> bool:
    if [one.name for one in before.components] != [one.name for one in after.components] or not before.components:
        return False
    pairs = zip(before.components, after.components, strict=True)
    return all(0 <= later.admitted - one.admitted < one.backlog for one, later in pairs)


def _admitted(first: Snapshot, last: Snapshot) -> Counter[str]:
    pairs = zip(first.components, last.components, strict=True)
    return Counter({one.name: later.admitted - one.admitted for one, later in pairs})


def off(first: Snapshot, last: Snapshot) -> float:
    """Returns by how many prompts a component was off its share of what was admitted, at most."""
    admitted, total = _admitted(first, last), sum(one.weight for one in first.components)
    whole = admitted.total()
    return max(abs(admitted[one.name] - whole * one.weight / total) for one in first.components)


def _component(task: str) -> str:
    return task.partition("/")[0].partition(".")[0]
