"""All promises judged, each by itself, and the verdict as a person reads it."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tests.faults.history.checker.check_books import accounting, checkpoints, identity, keeps, records
from tests.faults.history.checker.check_evaluation import RoundCounts, Rounds
from tests.faults.history.checker.check_fleet import FleetCounts, fleet, fleet_counts
from tests.faults.history.checker.check_mixture import ShareCounts, share_counts, shares
from tests.faults.history.checker.check_partials import StoredProgress
from tests.faults.history.checker.check_prompts import deaths, lost, never_attempted, promised, trained_twice
from tests.faults.history.checker.check_weights import Lags, loaded, stamped
from tests.faults.history.checker.evidence import Evidence, Violation
from tests.faults.history.served_versions import Served


@dataclass(frozen=True)
class Verdict:
    """The promises and whether they were kept. `kept`: snapshots in which the identity held."""

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
    rewound: int
    """Lineages that an operator began at an older checkpoint."""
    continued: int
    """Tokens that one worker drew and another went on from."""
    dropped: int
    """Partial rollouts that a worker was handed and found to be none."""
    handed_back: int
    """Tasks that a worker which left in time gave to others."""
    mixed: int
    """Completed groups with tokens of several versions."""
    answered: int
    """Completed groups to which their environment answered."""
    rounds: RoundCounts | None
    fleet: FleetCounts | None
    shares: ShareCounts | None
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
            f"{self.lineages:,} lineages, {self.rewound:,} of them rewinds",
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
            f"rollout     {self.continued:,} tokens continued by others, {self.handed_back:,} tasks handed back, "
            f"{self.dropped:,} bad partials dropped; {self.mixed:,} groups of several versions, {self.answered:,} with "
            "answers of their environment"
        )
        if self.rounds:
            lines.append(f"evaluation  {self.rounds}")
        if self.fleet:
            lines.append(f"fleet       {self.fleet}")
        if self.shares:
            lines.append(f"mixture     {self.shares}")
        if self.violations:
            lines += ["VIOLATIONS", *map(str, self.violations)]
        return "\n".join(lines)


def judge(evidence: Evidence) -> Verdict:
    """All promises, each checked by itself."""
    lags, partials, rounds = Lags(evidence), StoredProgress(evidence), Rounds(evidence)
    found = [
        *idle(evidence),
        *lost(evidence),
        *deaths(evidence),
        *never_attempted(evidence),
        *trained_twice(evidence),
        *lags.violations(),
        *partials.violations(),
        *rounds.violations(),
        *stamped(evidence),
        *loaded(evidence),
        *records(evidence),
        *checkpoints(evidence),
        *identity(evidence),
        *accounting(evidence),
        *fleet(evidence),
        *shares(evidence),
    ]
    surviving = evidence.surviving_updates
    trained = Counter(evidence.trained)
    return Verdict(
        submitted=len(promised(evidence)),
        trained=len(trained),
        dead=len(evidence.dead),
        updates=len(surviving),
        abandoned_updates=len(evidence.updates) - len(surviving),
        lineages=len({event.facts.lineage for event in evidence.answers("resume")}),
        completions=Counter(outcome for event in evidence.answers("complete") for outcome in event.facts.outcomes),
        lags=lags.counted,
        lost=sum(len(violation.ids) for violation in found if violation.kind == "lost"),
        duplicated=sum(trained.values()) - len(trained),
        beyond_s=sum(len(violation.ids) for violation in found if violation.kind == "beyond S"),
        snapshots=len(evidence.snapshots),
        kept=sum(keeps(snapshot.audit) for snapshot in evidence.snapshots),
        served=evidence.served,
        rewound=sum(event.role == "rewinder" for event in evidence.answers("resume")),
        continued=partials.continued,
        dropped=partials.dropped,
        handed_back=sum(int(event.facts.note) for event in evidence.answers("release")),
        mixed=sum(made.oldest < made.newest for made in evidence.completed.values()),
        answered=sum(made.observed > 0 for made in evidence.completed.values()),
        rounds=rounds.counts,
        fleet=fleet_counts(evidence),
        shares=share_counts(evidence),
        violations=tuple(found),
    )


def idle(evidence: Evidence) -> Iterator[Violation]:
    """A history in which nothing was done, or without a snapshot, shows nothing."""
    empty = {
        "the history has no event": evidence.events,
        "no prompt was trained": evidence.trained,
        "no snapshot was taken": evidence.snapshots,
    }
    for what, found in empty.items():
        if not found:
            yield Violation("nothing shown", what)
