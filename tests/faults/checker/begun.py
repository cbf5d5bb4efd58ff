"""What became of drafts: whoever leases a task goes on from what another has stored of it and nothing else, and from
nothing that is too old, made by weights that were left behind, or spoiled.
"""

from collections.abc import Iterator

from echo_queue.records import Version
from tests.faults.checker.evidence import Evidence, Violation
from tests.faults.facts import Begun
from tests.faults.history import Event


class Drafts:
    """Those that were stored, and those that a lease handed out."""

    def __init__(self, evidence: Evidence) -> None:
        self.evidence = evidence
        stored = [(event, draft) for event in evidence.attempts("progress") for draft in event.facts.drafts]
        self._stored = {(draft.id, draft.mark): draft for _, draft in reversed(stored)}
        self._since = {(draft.id, draft.mark): event.time_s for event, draft in reversed(stored)}
        self._makers = {(event.life, draft.id, draft.mark) for event, draft in stored}
        self._leased = [(event, draft) for event in evidence.answers("lease") for draft in event.facts.drafts]
        self._dropped = {(event.life, task) for event in evidence.attempts("discard") for task in event.facts.ids}

    @property
    def continued(self) -> int:
        """Tokens that one process drew and another was handed to go on from."""
        return sum(
            draft.tokens
            for event, draft in self._leased
            if (event.life, draft.id, draft.mark) not in self._makers and (event.life, draft.id) not in self._dropped
        )

    @property
    def dropped(self) -> int:
        """Drafts that a worker was handed and found to be none."""
        return sum(int(event.facts.note) for event in self.evidence.answers("discard"))

    def violations(self) -> Iterator[Violation]:
        unstored = [draft.id for event, draft in self._leased if not self._since_before(draft, event.time_s)]
        if unstored:
            yield self.evidence.violation("unheard of", f"{len(unstored)} drafts were never stored", unstored)
        old = [draft.id for event, draft in self._leased if (event.facts.version or 0) - draft.oldest > self.evidence.s]
        if old:
            what = f"{len(old)} drafts were too old when they were handed out"
            yield self.evidence.violation("stale draft", what, old)
        left_behind = [draft.id for event, draft in self._leased if self._is_left_behind(event, draft)]
        if left_behind:
            what = f"{len(left_behind)} drafts were handed out whose weights had been left behind"
            yield self.evidence.violation("abandoned weights", what, left_behind)
        if believed := self._believed():
            what = f"{len(believed)} drafts of tokens that the model does not have were gone on with"
            yield self.evidence.violation("bad draft", what, believed)

    def _since_before(self, draft: Begun, time_s: float) -> bool:
        return self._since.get((draft.id, draft.mark), time_s) < time_s

    def _is_left_behind(self, event: Event, draft: Begun) -> bool:
        """Where the fork is not known, since its learner died too early to tell, nothing is said."""
        lineage = event.facts.lineage or 0
        return lineage in self.evidence.forks and self.evidence.abandoned(Version(draft.lineage, draft.newest), lineage)

    def _believed(self) -> list[str]:
        """Ids that somebody completed after a spoiled draft of them was handed out, and did not drop it."""
        completed = {
            (event.life, made.id) for event in self.evidence.attempts("complete") for made in event.facts.groups
        }
        return [
            draft.id
            for event, draft in self._leased
            if (event.life, draft.id) in completed - self._dropped and self._is_spoiled(draft)
        ]

    def _is_spoiled(self, draft: Begun) -> bool:
        stored = self._stored.get((draft.id, draft.mark))
        return stored is not None and stored.highest >= self.evidence.vocabulary
