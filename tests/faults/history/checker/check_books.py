"""The checkpoints, the learner's records and the queue tell one story: a checkpoint holds what its updates recorded,
what was committed is trained, and the identity holds in every snapshot.
"""

import math
from collections import defaultdict
from collections.abc import Iterator

from echo_queue.queue import Audit
from tests.faults.history.checker.evidence import Evidence, Snapshot, Update, Violation

SENT_BACK = ("late", "abandoned", "buried", "undone")
"""Counters of what happens to a group after it was accepted, other than being trained."""
MANIFEST = ("put checkpoints/manifest.json", "put once checkpoints/manifest.json")


def records(evidence: Evidence) -> Iterator[Violation]:
    """A checkpoint holds what the updates since its parent recorded, id by id, in order."""
    by_version: defaultdict[tuple[int, int], list[Update]] = defaultdict(list)
    for update in evidence.updates:
        by_version[update.lineage, update.version].append(update)
    for version, again in by_version.items():
        if len(again) > 1:
            what = f"version {version[0]}.{version[1]} was recorded {len(again)} times"
            yield evidence.violation("record", what, again[0].ids[:1])
    before = 0
    for link in evidence.chain:
        versions = range(before + 1, link.version + 1)
        recorded = [task for v in versions for update in by_version[link.lineage, v] for task in update.ids]
        if tuple(recorded) != link.trained:
            differ = sorted(set(recorded) ^ set(link.trained)) or list(link.trained)
            what = f"checkpoint {link.name} holds {len(link.trained)} ids, its updates recorded {len(recorded)}"
            yield evidence.violation("record", what, differ)
        before = link.version


def checkpoints(evidence: Evidence) -> Iterator[Violation]:
    """An acknowledged checkpoint stays; what was committed is trained, unless it was taken back."""
    told = {name_of(event.facts.key) for event in evidence.answers(*MANIFEST)}
    if gone := sorted(told - evidence.stored):
        yield Violation("checkpoint gone", f"{len(gone)} acknowledged manifests are not in the store", tuple(gone))
    back = {task for event in evidence.attempts("uncommit") for task in event.facts.ids}
    committed = {task for _, attempt in evidence.acknowledged("commit").values() for task in attempt.facts.ids}
    if untrained := sorted(committed - set(evidence.trained) - back):
        what = f"{len(untrained)} committed ids are in no surviving checkpoint"
        yield evidence.violation("committed and not trained", what, untrained)


def keeps(audit: Audit) -> bool:
    """The identities of training and of evaluation, reckoned from the counts."""
    placed, of_rounds = audit.tasks + audit.replay + audit.dead, audit.evaluation + audit.scored
    whole = audit.submitted == audit.backlog + audit.trained + placed and audit.asked == of_rounds + audit.concluded
    leased = audit.in_flight + audit.evaluating
    listed = audit.ready + audit.in_hand == audit.replay and leased == audit.leases == audit.leased
    return whole and listed and audit.open == placed + of_rounds and audit.lost == 0


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
    epochs = evidence.epochs
    tried = {
        (event.facts.set, event.facts.parts[0])
        for event in evidence.attempts("submit")
        if event.facts.set not in evidence.held_out
    }
    told = {
        (attempt.facts.set, attempt.facts.parts[0]) for _, attempt in evidence.acknowledged("submit").values()
    } & tried
    least, most = (sum(epochs.get(name, 1) * part.size for name, part in parts) for parts in (told, tried))
    accepted = {
        (made.id, made.worker, made.attempt)
        for event, attempt in evidence.acknowledged("complete").values()
        for made, outcome in zip(attempt.facts.groups, event.facts.outcomes, strict=True)
        if outcome == "accepted" and not evidence.is_held_out(made.id)
    }
    bad = sum(number for name, number in counts.items() if name.startswith("bad_"))
    trained, causes = len(set(evidence.trained)), bad + sum(counts.get(cause, 0) for cause in SENT_BACK)
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


def name_of(key: str) -> str:
    """checkpoints/0001/00000004/manifest.json → 0001/00000004"""
    return key.removeprefix("checkpoints/").rpartition("/")[0]
