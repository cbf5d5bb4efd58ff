"""The weights that made each group: no group older than S is trained, none by weights that were left behind, and what a
group says of its weights is true of the tensors that made it.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator

from echo_queue.records import BASE, Version
from tests.faults.history.checker.evidence import Evidence, Update, Violation
from tests.faults.history.facts import Generated


class Lags:
    """The lag of every group of every update, surviving or not, from what its maker wrote down when it made it."""

    def __init__(self, evidence: Evidence) -> None:
        self.evidence = evidence
        self.counted: Counter[int] = Counter()
        self._completed = evidence.completed
        self._outcomes = _outcomes(evidence)
        self._lives = {event.facts.lineage: event.life for event in evidence.answers("resume")}
        self._taken = _taken(evidence)

    def violations(self) -> Iterator[Violation]:
        wrong: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
        for update in self.evidence.updates:
            lags: Counter[int] = Counter()
            for task in update.ids:
                kind, what, lag = self._look(update, task)
                if kind:
                    wrong[kind, what].append(task)
                if lag is not None:
                    lags[lag] += 1
            self.counted += lags
            if lags != Counter(update.lags):
                what = f"update {update.lineage}.{update.version} says lags {dict(update.lags)}, history {dict(lags)}"
                wrong["record", what].extend(update.ids[:1])
            for lag in update.reused_lags:
                if not 1 <= lag <= self.evidence.s:
                    what = f"update {update.lineage}.{update.version} trained groups again at lag {lag}"
                    wrong["beyond S", what].extend(update.ids[:1])
        for (kind, what), ids in wrong.items():
            yield self.evidence.violation(kind, what, ids)

    def _look(self, update: Update, task: str) -> tuple[str, str, int | None]:
        """(kind of violation or nothing, what is wrong, lag) of one trained group."""
        life = self._lives.get(update.lineage)
        taken = [at for at in self._taken[life, task] if at[0] <= update.time_s] if life else []
        name = f"update {update.lineage}.{update.version}"
        if not taken:
            return "unheard of", f"{name} trained what its learner was never handed", None
        mark = taken[-1][1].mark
        made = self._completed.get(mark)
        if made is None:
            return "unheard of", f"{name} trained content that no worker tried to complete", None
        lag = update.version - 1 - made.oldest
        if lag > self.evidence.s or lag < 0:
            return "beyond S", f"{name} trained groups of lag {lag}", lag
        if self._abandoned(made, update.lineage):
            return "abandoned weights", f"{name} trained groups made by {made.lineage}.{made.newest}", lag
        if self._outcomes[mark] and "accepted" not in self._outcomes[mark]:
            return "refused", f"{name} trained groups whose completion was refused", lag
        return "", "", lag

    def _abandoned(self, made: Generated, lineage: int) -> bool:
        """The learner's weights do not descend from all that made the group."""
        told = map(version_of, made.stamp.split()) if self.evidence.stamped else ()
        versions = {Version(made.lineage, made.newest), *told}
        return any(self.evidence.abandoned(version, lineage) for version in versions)


def version_of(name: str) -> Version:
    """1.3 → lineage 1, number 3"""
    return Version(*map(int, name.split(".")))


def stamped(evidence: Evidence) -> Iterator[Violation]:
    """The label under which a group was made is that of the tensors which made it."""
    if not evidence.stamped:
        return
    groups = evidence.completed.values()
    wrong = [made for made in groups if made.stamp.rpartition(" ")[2] != f"{made.lineage}.{made.newest}"]
    if wrong:
        first = wrong[0]
        told = first.stamp or "none, or others than their spans say"
        what = f"{len(wrong)} groups, the first of {first.lineage}.{first.newest} by tensors of {told}"
        yield evidence.violation("other weights", what, [made.id for made in wrong])


def loaded(evidence: Evidence) -> Iterator[Violation]:
    """All weights that generate are, to the last tensor, those that the learner signed."""
    if evidence.served is None:
        return
    if evidence.served.wrong:
        what = f"{len(evidence.served.wrong)} swaps left other tensors in the engine than were published"
        yield Violation("loaded", what, evidence.served.wrong)
    known = {str(BASE), *evidence.served.swaps}
    groups = [made for made in evidence.completed.values() if not known.issuperset(made.stamp.split())]
    if groups:
        what = f"{len(groups)} groups were made by weights that no worker was seen to load whole"
        yield evidence.violation("loaded", what, [made.id for made in groups])


def _taken(evidence: Evidence) -> defaultdict[tuple[str | None, str], list[tuple[float, Generated]]]:
    """(learner's life, id) → the groups of that id that were handed to it, in order of time."""
    taken: defaultdict[tuple[str | None, str], list[tuple[float, Generated]]] = defaultdict(list)
    for event in evidence.answers("fetch", "get replay"):
        for made in event.facts.groups:
            taken[event.life, made.id].append((event.time_s, made))
    return taken


def _outcomes(evidence: Evidence) -> defaultdict[str, set[str]]:
    """Mark → what its makers were told about it.

    A completion that lost its reply and is sent again is `unknown` once its group is committed: it was accepted.
    """
    committed: dict[str, float] = {}
    for event in evidence.attempts("commit"):
        committed |= {task: event.time_s for task in event.facts.ids if task not in committed}
    told: defaultdict[str, set[str]] = defaultdict(set)
    for event, attempt in evidence.acknowledged("complete").values():
        for made, outcome in zip(attempt.facts.groups, event.facts.outcomes, strict=True):
            again = outcome == "unknown" and committed.get(made.id, event.time_s) < event.time_s
            told[made.mark].add("accepted" if again else outcome)
    return told
