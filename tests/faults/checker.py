"""Whether the pipeline kept its word, judged from outside in the sense of Jepsen's total-queue.

Pure: `judge` compares what the roles attempted and were told (`history`) with what survives: the newest checkpoint's
chain, the queue's last audit, and audits taken all along. It believes the queue only about what it counts, never
about what was trained or how old that was. Each violation names ids and the lines of history that concern them.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from echo_queue import staleness
from echo_queue.queue import Audit
from echo_queue.records import BASE, Version
from tests.faults.history import Event, Made
from tests.faults.served import Served

SHOWN_IDS, SHOWN_LINES = 10, 40
UNTOLD = 3
"""Leases of one task at most that a worker was granted and died before it could write down."""
MISFORTUNES, ONE_IN_UNLUCKY = 5, 200
"""So many prompts, and one in so many more, may die of workers that were killed; others have a cause of their own."""
SENT_BACK = ("late", "abandoned", "buried", "undone")
"""Counters of what happens to a group after it was accepted, other than being trained."""
MANIFEST = ("put checkpoints/manifest.json", "put once checkpoints/manifest.json")


@dataclass(frozen=True)
class Update:
    """The learner's own record of one update: `version` is the one it made."""

    lineage: int
    version: int
    ids: tuple[str, ...]
    lags: Mapping[int, int]
    time_s: float


@dataclass(frozen=True)
class Link:
    """A checkpoint of the surviving chain, or of what it left behind: the ids trained since its parent."""

    name: str
    lineage: int
    version: int
    parent: str | None
    trained: tuple[str, ...]


@dataclass(frozen=True)
class Snapshot:
    time_s: float
    audit: Audit


@dataclass(frozen=True)
class Evidence:
    """`chain`: surviving checkpoints, oldest first. `stored`: names of all manifests found in the store.

    `final`, `dead` (id → reason) and `counts` (by cause) are what the queue says once nothing moves any more.
    `poison`: prompts that no environment can score. Tokens from `vocabulary` on are spoiled. `stamped`: the tensors
    tell their version (`stamps`), and a group says which made it. `served`: what the workers loaded, if that was seen.
    """

    events: tuple[Event, ...]
    updates: tuple[Update, ...]
    chain: tuple[Link, ...]
    stored: frozenset[str]
    snapshots: tuple[Snapshot, ...]
    final: Audit
    dead: Mapping[str, str]
    counts: Mapping[str, int]
    s: int
    max_attempts: int
    vocabulary: int
    poison: Callable[[str], bool]
    stamped: bool
    served: Served | None

    @cached_property
    def trained(self) -> tuple[str, ...]:
        """Ids in the surviving lineage, as often as they are there."""
        return tuple(task for link in self.chain for task in link.trained)

    @cached_property
    def completed(self) -> dict[str, Made]:
        """Every group that anybody tried to complete, by its mark, as its maker made it."""
        return {made.mark: made for event in self.events if not event.answered for made in _completed(event)}

    def lines(self, ids: Collection[str]) -> tuple[str, ...]:
        """The history of these ids, a line each, as far as fits on a screen."""
        concerned = set(ids)
        found = [told for event in self.events if (told := _told(event, concerned))]
        cut = [f"… {len(found) - SHOWN_LINES} further lines"] if len(found) > SHOWN_LINES else []
        return (*found[:SHOWN_LINES], *cut)


@dataclass(frozen=True)
class Violation:
    """A broken promise: its kind, what is wrong, the ids concerned, and what history says about the first of them."""

    kind: str
    what: str
    ids: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()

    def __str__(self) -> str:
        more = f" … {len(self.ids) - SHOWN_IDS} more" if len(self.ids) > SHOWN_IDS else ""
        named = [f"    {' '.join(self.ids[:SHOWN_IDS])}{more}"] if self.ids else []
        return "\n".join([f"  {self.kind}: {self.what}", *named, *(f"      {line}" for line in self.lines)])


@dataclass(frozen=True)
class Verdict:
    """What was promised and what became of it. `kept`: snapshots in which the identity held."""

    submitted: int
    trained: int
    dead: int
    updates: int
    abandoned_updates: int
    lineages: int
    completions: Mapping[str, int]
    lags: Mapping[int, int]
    lost: int
    duplicated: int
    beyond_s: int
    snapshots: int
    kept: int
    served: Served | None
    continued: int
    """Tokens that one worker drew and another went on from."""
    mixed: int
    """Completed groups with tokens of several versions."""
    answered: int
    """Completed groups to which their environment answered."""
    violations: tuple[Violation, ...]

    @property
    def ok(self) -> bool:
        return not self.violations

    def __str__(self) -> str:
        completions = ", ".join(f"{count:,} {outcome}" for outcome, count in sorted(self.completions.items()))
        lags = ", ".join(f"{lag}: {count:,}" for lag, count in sorted(self.lags.items()))
        lines = [
            f"prompts     {self.submitted:,} acknowledged, {self.trained:,} trained, {self.dead:,} dead with a reason",
            f"updates     {self.updates:,} survive, {self.abandoned_updates:,} were abandoned; "
            f"{self.lineages:,} lineages",
            f"completions {completions}",
            f"lags        {lags}",
            f"lost        {self.lost:,}",
            f"duplicated  {self.duplicated:,}",
            f"beyond S    {self.beyond_s:,}",
            f"snapshots   {self.snapshots:,} taken, identity held in {self.kept:,}",
        ]
        if self.served:
            lines.append(f"weights     {self.served}")
        lines.append(
            f"rollout     {self.continued:,} tokens continued by other workers; {self.mixed:,} groups of several "
            f"versions, {self.answered:,} with answers of their environment"
        )
        if self.violations:
            lines += ["VIOLATIONS", *map(str, self.violations)]
        return "\n".join(lines)


def judge(evidence: Evidence) -> Verdict:
    """All promises, each checked by itself."""
    lags = Lags(evidence)
    found = [
        *idle(evidence),
        *lost(evidence),
        *deaths(evidence),
        *never_attempted(evidence),
        *trained_twice(evidence),
        *lags.violations(),
        *stamped(evidence),
        *loaded(evidence),
        *records(evidence),
        *checkpoints(evidence),
        *identity(evidence),
        *accounting(evidence),
    ]
    surviving = _surviving_updates(evidence)
    trained = Counter(evidence.trained)
    return Verdict(
        submitted=len(promised(evidence)),
        trained=len(trained),
        dead=len(evidence.dead),
        updates=len(surviving),
        abandoned_updates=len(evidence.updates) - len(surviving),
        lineages=len({event.facts.lineage for event in _answers(evidence, "resume")}),
        completions=Counter(outcome for event in _answers(evidence, "complete") for outcome in event.facts.outcomes),
        lags=lags.counted,
        lost=sum(len(violation.ids) for violation in found if violation.kind == "lost"),
        duplicated=sum(trained.values()) - len(trained),
        beyond_s=sum(len(violation.ids) for violation in found if violation.kind == "beyond S"),
        snapshots=len(evidence.snapshots),
        kept=sum(keeps(snapshot.audit) for snapshot in evidence.snapshots),
        served=evidence.served,
        continued=evidence.counts.get("tokens_continued", 0),
        mixed=sum(made.oldest < made.newest for made in evidence.completed.values()),
        answered=sum(made.observed > 0 for made in evidence.completed.values()),
        violations=tuple(found),
    )


# Something happened ---------------------------------------------------------------------------------------------------


def idle(evidence: Evidence) -> Iterator[Violation]:
    """A history in which nothing was done, or in which nobody looked, shows nothing."""
    empty = {
        "the history has no event": evidence.events,
        "no prompt was trained": evidence.trained,
        "no snapshot was taken": evidence.snapshots,
    }
    for what, found in empty.items():
        if not found:
            yield Violation("nothing shown", what)


# Nothing acknowledged is lost -----------------------------------------------------------------------------------------


def promised(evidence: Evidence) -> dict[str, str]:
    """Ids whose submission, or whose set's declaration, was acknowledged: id → where.

    A chunk that its source no longer held may be refused; it is promised from when it is submitted after all.
    """
    refused = {(event.facts.set, event.facts.parts[0].number) for event in _attempts(evidence, "reject")}
    mended = {(event.facts.set, event.facts.parts[0].number) for event in _attempts(evidence, "submit")}
    epochs = _epochs(evidence)
    ids: dict[str, str] = {}
    for number, (event, attempt) in _acknowledged(evidence, "declare", "submit").items():
        del number
        for part in attempt.facts.parts:
            if event.step == "declare" and (attempt.facts.set, part.number) in refused - mended:
                continue
            for task in _ids(attempt.facts.set, epochs[attempt.facts.set], part.first, part.size):
                ids.setdefault(task, event.place)
    return ids


def lost(evidence: Evidence) -> Iterator[Violation]:
    trained = set(evidence.trained)
    missing = [task for task in promised(evidence) if task not in trained and task not in evidence.dead]
    if missing:
        what = f"{len(missing)} prompts, whose submission was acknowledged, are neither trained nor dead"
        yield _violation(evidence, "lost", what, missing)
    silent = [task for task, reason in evidence.dead.items() if not reason.strip()]
    if silent:
        yield _violation(evidence, "dead without a reason", f"{len(silent)} prompts", silent)


# Nobody dies without a cause ------------------------------------------------------------------------------------------


def deaths(evidence: Evidence) -> Iterator[Violation]:
    """Each death is explained by what others saw: spoiled tokens, or as many leases as a task may have.

    What was leased so often and is no poison had workers killed each time, which happens to few.
    """
    spoiled = {made.id for made in evidence.completed.values() if made.highest >= evidence.vocabulary}
    leases = _leases(evidence)
    answered = {(event.life, event.number) for event in _answers(evidence, "lease")}
    unanswered = sum((event.life, event.number) not in answered for event in _attempts(evidence, "lease"))
    enough = evidence.max_attempts - min(UNTOLD, unanswered)
    early = [task for task in evidence.dead if task not in spoiled and leases[task] < enough]
    if early:
        what = f"{len(early)} prompts are dead, not spoiled, and were leased fewer than {enough} times"
        yield _violation(evidence, "dead without a cause", what, early)
    unlucky = [task for task in evidence.dead if task not in spoiled and not evidence.poison(task)]
    if len(unlucky) > MISFORTUNES + len(promised(evidence)) // ONE_IN_UNLUCKY:
        what = f"{len(unlucky)} prompts are dead that were neither poison nor spoiled"
        yield _violation(evidence, "too many dead", what, unlucky)
    if scored := [task for task in set(evidence.trained) if evidence.poison(task)]:
        yield _violation(evidence, "poison trained", f"{len(scored)} prompts that nobody can score", scored)


def _leases(evidence: Evidence) -> Counter[str]:
    """How often each id was leased since it was last revived."""
    leases: Counter[str] = Counter()
    revived = {(event.life, event.number) for event in _answers(evidence, "revive")}
    for event in evidence.events:
        if event.step == "lease" and event.answered:
            leases.update(event.facts.ids)
        if event.step == "revive" and not event.answered and (event.life, event.number) in revived:
            for task in event.facts.ids:
                leases[task] = 0
    return leases


# Nothing appears that was never attempted -----------------------------------------------------------------------------


def never_attempted(evidence: Evidence) -> Iterator[Violation]:
    epochs = _epochs(evidence)
    attempted = {
        task
        for event in _attempts(evidence, "submit")
        for part in event.facts.parts
        for task in _ids(event.facts.set, epochs.get(event.facts.set, 1), part.first, part.size)
    }
    leased = {task for event in _answers(evidence, "lease") for task in event.facts.ids}
    for name, ids in (("trained", set(evidence.trained)), ("dead", set(evidence.dead)), ("leased", leased)):
        if unknown := sorted(ids - attempted):
            yield _violation(evidence, "unheard of", f"{len(unknown)} {name} ids were never submitted", unknown)
    made = {group.id for group in evidence.completed.values()}
    if unmade := sorted(set(evidence.trained) - made):
        yield _violation(evidence, "unheard of", f"{len(unmade)} trained ids were never completed", unmade)


def trained_twice(evidence: Evidence) -> Iterator[Violation]:
    again = [task for task, times in Counter(evidence.trained).items() if times > 1]
    if again:
        yield _violation(evidence, "trained twice", f"{len(again)} ids in the surviving lineage", again)
    both = sorted(set(evidence.trained) & set(evidence.dead))
    if both:
        yield _violation(evidence, "trained and dead", f"{len(both)} ids", both)


# Nothing older than S is trained --------------------------------------------------------------------------------------


class Lags:
    """The lag of every group of every update, surviving or not, from what its maker wrote down when it made it."""

    def __init__(self, evidence: Evidence) -> None:
        self.evidence = evidence
        self.counted: Counter[int] = Counter()
        self._completed = evidence.completed
        self._outcomes = _outcomes(evidence)
        self._lives = {event.facts.lineage: event.life for event in _answers(evidence, "resume")}
        self._forks = {
            event.facts.lineage or 0: Version(event.facts.parent or 0, event.facts.version or 0)
            for event in _answers(evidence, "resume")
        }
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
        for (kind, what), ids in wrong.items():
            yield _violation(self.evidence, kind, what, ids)

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
            return "unheard of", f"{name} trained content that nobody tried to complete", None
        lag = update.version - 1 - made.oldest
        if lag > self.evidence.s or lag < 0:
            return "beyond S", f"{name} trained groups of lag {lag}", lag
        if self._abandoned(made, update.lineage):
            return "abandoned weights", f"{name} trained groups made by {made.lineage}.{made.newest}", lag
        if self._outcomes[mark] and "accepted" not in self._outcomes[mark]:
            return "refused", f"{name} trained groups whose completion was refused", lag
        return "", "", lag

    def _abandoned(self, made: Made, lineage: int) -> bool:
        """The learner's weights do not descend from the newest that made the group."""
        forks = {later: began for later, began in self._forks.items() if later <= lineage}
        return staleness.abandoned(Version(made.lineage, made.newest), forks)


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
        yield _violation(evidence, "other weights", what, [made.id for made in wrong])


def loaded(evidence: Evidence) -> Iterator[Violation]:
    """Nothing generates but what is, to the last tensor, what the learner signed; by differences, and from peers."""
    if evidence.served is None:
        return
    if evidence.served.wrong:
        what = f"{len(evidence.served.wrong)} swaps left other tensors in the engine than were published"
        yield Violation("loaded", what, evidence.served.wrong)
    known = {str(BASE), *evidence.served.swaps}
    groups = [made for made in evidence.completed.values() if not known.issuperset(made.stamp.split())]
    if groups:
        what = f"{len(groups)} groups were made by weights that no worker was seen to load whole"
        yield _violation(evidence, "loaded", what, [made.id for made in groups])
    unused = [what for what in ("anchors", "differences") if not evidence.served.ways[what]]
    unused += [f"bytes from a {source}" for source in ("store", "peer") if not evidence.served.bytes[source]]
    if unused:
        yield Violation("nothing shown", f"the weights came without {', '.join(unused)}")


def _taken(evidence: Evidence) -> defaultdict[tuple[str | None, str], list[tuple[float, Made]]]:
    """(learner's life, id) → the groups of that id that were handed to it, in order of time."""
    taken: defaultdict[tuple[str | None, str], list[tuple[float, Made]]] = defaultdict(list)
    for event in _answers(evidence, "fetch", "get replay"):
        for made in event.facts.groups:
            taken[event.life, made.id].append((event.time_s, made))
    return taken


def _outcomes(evidence: Evidence) -> defaultdict[str, set[str]]:
    """Mark → what its makers were told about it."""
    told: defaultdict[str, set[str]] = defaultdict(set)
    for event, attempt in _acknowledged(evidence, "complete").values():
        for made, outcome in zip(attempt.facts.groups, event.facts.outcomes, strict=True):
            told[made.mark].add(outcome)
    return told


# The chain, the records and the queue tell one story ------------------------------------------------------------------


def records(evidence: Evidence) -> Iterator[Violation]:
    """What a checkpoint holds is what the updates since its parent recorded, id by id, in order."""
    by_version: defaultdict[tuple[int, int], list[Update]] = defaultdict(list)
    for update in evidence.updates:
        by_version[update.lineage, update.version].append(update)
    for version, again in by_version.items():
        if len(again) > 1:
            what = f"version {version[0]}.{version[1]} was recorded {len(again)} times"
            yield _violation(evidence, "record", what, again[0].ids[:1])
    before = 0
    for link in evidence.chain:
        versions = range(before + 1, link.version + 1)
        recorded = [task for v in versions for update in by_version[link.lineage, v] for task in update.ids]
        if tuple(recorded) != link.trained:
            differ = sorted(set(recorded) ^ set(link.trained)) or list(link.trained)
            what = f"checkpoint {link.name} holds {len(link.trained)} ids, its updates recorded {len(recorded)}"
            yield _violation(evidence, "record", what, differ)
        before = link.version


def checkpoints(evidence: Evidence) -> Iterator[Violation]:
    """An acknowledged checkpoint stays; what was committed is trained, unless it was taken back."""
    told = {_name(event.facts.key) for event in _answers(evidence, *MANIFEST)}
    if gone := sorted(told - evidence.stored):
        yield Violation("checkpoint gone", f"{len(gone)} acknowledged manifests are not in the store", tuple(gone))
    back = {task for event in _attempts(evidence, "uncommit") for task in event.facts.ids}
    committed = {task for _, attempt in _acknowledged(evidence, "commit").values() for task in attempt.facts.ids}
    if untrained := sorted(committed - set(evidence.trained) - back):
        what = f"{len(untrained)} committed ids are in no surviving checkpoint"
        yield _violation(evidence, "committed and not trained", what, untrained)


def keeps(audit: Audit) -> bool:
    """The identity, reckoned from the counts."""
    placed = audit.tasks + audit.replay + audit.dead
    whole = audit.submitted == audit.backlog + audit.trained + placed
    return whole and audit.open == placed and audit.flying == audit.leased and audit.lost == 0


def identity(evidence: Evidence) -> Iterator[Violation]:
    """Broken once, it mostly stays so: what is shown is how it broke."""
    snapshots = (*evidence.snapshots, Snapshot(math.inf, evidence.final))
    broken = [place for place, snapshot in enumerate(snapshots) if not keeps(snapshot.audit)]
    if broken:
        first = range(max(0, broken[0] - 2), broken[0] + 1)
        lines = tuple(f"{snapshots[place].time_s:.3f} {snapshots[place].audit}" for place in first)
        yield Violation(
            "identity", f"broken in {len(broken)} of {len(snapshots)} snapshots, first in the last of", lines=lines
        )
    for before, after in zip(evidence.snapshots, evidence.snapshots[1:], strict=False):
        if after.audit.submitted < before.audit.submitted:
            what = f"{before.audit.submitted} prompts became {after.audit.submitted} at {after.time_s:.3f}"
            yield Violation("submitted fell", what)


def accounting(evidence: Evidence) -> Iterator[Violation]:
    """The queue's last counts are those of the history."""
    final, counts = evidence.final, evidence.counts
    epochs = _epochs(evidence)
    told = {(attempt.facts.set, attempt.facts.parts[0]) for _, attempt in _acknowledged(evidence, "submit").values()}
    tried = {(event.facts.set, event.facts.parts[0]) for event in _attempts(evidence, "submit")}
    least, most = (sum(epochs.get(name, 1) * part.size for name, part in parts) for parts in (told, tried))
    accepted = {
        (made.id, made.worker, made.attempt)
        for event, attempt in _acknowledged(evidence, "complete").values()
        for made, outcome in zip(attempt.facts.groups, event.facts.outcomes, strict=True)
        if outcome == "accepted"
    }
    trained, causes = len(set(evidence.trained)), sum(counts.get(cause, 0) for cause in SENT_BACK)
    wrong = (
        (final.backlog + final.tasks + final.replay > 0, f"not drained: {final}"),
        (not least <= final.submitted <= most, f"submitted is {final.submitted}, not within {least} … {most}"),
        (final.trained != trained, f"the queue counts {final.trained} trained, the checkpoints hold {trained}"),
        (final.dead != len(evidence.dead), f"the queue counts {final.dead} dead and lists {len(evidence.dead)}"),
        (
            len(accepted) > trained + causes,
            f"{len(accepted)} accepted groups, but {trained} trained and {causes} sent back with a cause",
        ),
    )
    for broken, what in wrong:
        if broken:
            yield Violation("accounting", what)


# ----------------------------------------------------------------------------------------------------------------------


def _attempts(evidence: Evidence, *steps: str) -> Iterator[Event]:
    return (event for event in evidence.events if event.step in steps and not event.answered)


def _answers(evidence: Evidence, *steps: str) -> Iterator[Event]:
    return (event for event in evidence.events if event.step in steps and event.answered)


def _acknowledged(evidence: Evidence, *steps: str) -> dict[tuple[str, int], tuple[Event, Event]]:
    """(life, number) → answer and attempt."""
    attempts = {(event.life, event.number): event for event in _attempts(evidence, *steps)}
    return {
        (event.life, event.number): (event, attempts[event.life, event.number]) for event in _answers(evidence, *steps)
    }


def _completed(event: Event) -> Sequence[Made]:
    return event.facts.groups if event.step == "complete" else ()


def _epochs(evidence: Evidence) -> dict[str, int]:
    return {event.facts.set: event.facts.epochs for event in _attempts(evidence, "declare")}


def _ids(name: str, epochs: int, first: int, count: int) -> Iterator[str]:
    return (f"{name}/{epoch}/{index}" for epoch in range(epochs) for index in range(first, first + count))


def _name(key: str) -> str:
    """checkpoints/0001/00000004/manifest.json → 0001/00000004"""
    return key.removeprefix("checkpoints/").rpartition("/")[0]


def _surviving_updates(evidence: Evidence) -> list[Update]:
    """Those that lie between two checkpoints of the chain."""
    held, before = set(), 0
    for link in evidence.chain:
        held |= {(link.lineage, version) for version in range(before + 1, link.version + 1)}
        before = link.version
    return [update for update in evidence.updates if (update.lineage, update.version) in held]


def _violation(evidence: Evidence, kind: str, what: str, ids: Iterable[str]) -> Violation:
    named = tuple(ids)
    return Violation(kind, what, named, evidence.lines(named[:2]))


def _told(event: Event, ids: set[str]) -> str:
    """The line of an event, if it concerns one of these ids."""
    groups = [made for made in event.facts.groups if made.id in ids]
    named = [task for task in event.facts.ids if task in ids]
    if event.step in ("declare", "submit"):
        named += [task for task in sorted(ids) if _concerns(event, task)]
    if not groups and not named:
        return ""
    sign = "←" if event.answered else "→"
    words = " ".join([*map(str, groups), *named, *event.facts.outcomes[:3]])
    return f"{event.time_s:.3f} {event.place} #{event.number} {sign} {event.step} {words}"


def _concerns(event: Event, task: str) -> bool:
    name, _, index = task.rsplit("/", 2)
    inside = (part.first <= int(index) < part.first + part.size for part in event.facts.parts)
    return event.facts.set == name and any(inside)
