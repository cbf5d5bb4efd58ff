"""The fate of partials: the worker that leases a task goes on from what another has stored of it and nothing else, and
from nothing that is too old, made by weights that were left behind, or spoiled.
"""

from collections.abc import Iterator

from echo_queue.records import Version
from tests.faults.history.checker.evidence import Evidence, Violation
from tests.faults.history.facts import Begun
from tests.faults.history.recorder import Event


class StoredProgress:
    """The partials that were stored, and those that a lease handed out."""

    def __init__(self, evidence: Evidence) -> None:
        self.evidence = evidence
        stored = [
            (event, partial_sample)
            for event in evidence.attempts("progress")
            for partial_sample in event.facts.partials
        ]
        self._stored = {
            (partial_sample.id, partial_sample.mark): partial_sample for _, partial_sample in reversed(stored)
        }
        self._since = {
            (partial_sample.id, partial_sample.mark): event.time_s for event, partial_sample in reversed(stored)
        }
        self._makers = {(event.life, partial_sample.id, partial_sample.mark) for event, partial_sample in stored}
        self._leased = [
            (event, partial_sample) for event in evidence.answers("lease") for partial_sample in event.facts.partials
        ]
        self._to_train = [
            (event, partial_sample)
            for event, partial_sample in self._leased
            if not evidence.is_held_out(partial_sample.id)  # `check_evaluation` has the others
        ]
        self._dropped = {(event.life, task) for event in evidence.attempts("discard") for task in event.facts.ids}

    @property
    def continued(self) -> int:
        """Tokens that one process drew and another was handed to go on from."""
        return sum(
            partial_sample.tokens
            for event, partial_sample in self._leased
            if (event.life, partial_sample.id, partial_sample.mark) not in self._makers
            and (event.life, partial_sample.id) not in self._dropped
        )

    @property
    def dropped(self) -> int:
        """Partial rollouts that a worker was handed and found to be none."""
        return sum(int(event.facts.note) for event in self.evidence.answers("discard"))

    def violations(self) -> Iterator[Violation]:
        unstored = [
            partial_sample.id
            for event, partial_sample in self._leased
            if not self._since_before(partial_sample, event.time_s)
        ]
        if unstored:
            yield self.evidence.violation("unheard of", f"{len(unstored)} partial rollouts were never stored", unstored)
        old = [
            partial_sample.id
            for event, partial_sample in self._to_train
            if (event.facts.version or 0) - partial_sample.oldest > self.evidence.s
        ]
        if old:
            what = f"{len(old)} partial rollouts were too old when they were handed out"
            yield self.evidence.violation("stale partial rollout", what, old)
        left_behind = [
            partial_sample.id for event, partial_sample in self._to_train if self._is_left_behind(event, partial_sample)
        ]
        if left_behind:
            what = f"{len(left_behind)} partial rollouts were handed out whose weights had been left behind"
            yield self.evidence.violation("abandoned weights", what, left_behind)
        if believed := self._believed():
            what = f"{len(believed)} partial rollouts of tokens that the model does not have were gone on with"
            yield self.evidence.violation("bad partial rollout", what, believed)

    def _since_before(self, partial_sample: Begun, time_s: float) -> bool:
        return self._since.get((partial_sample.id, partial_sample.mark), time_s) < time_s

    def _is_left_behind(self, event: Event, partial_sample: Begun) -> bool:
        """No verdict where the fork is unknown because its learner died too early to report it."""
        lineage = event.facts.lineage or 0
        return lineage in self.evidence.forks and self.evidence.abandoned(
            Version(partial_sample.lineage, partial_sample.newest), lineage
        )

    def _believed(self) -> list[str]:
        """The ids that were completed after a spoiled partial rollout of them was handed out, and did not drop it."""
        completed = {
            (event.life, made.id) for event in self.evidence.attempts("complete") for made in event.facts.groups
        }
        return [
            partial_sample.id
            for event, partial_sample in self._leased
            if (event.life, partial_sample.id) in completed - self._dropped and self._is_spoiled(partial_sample)
        ]

    def _is_spoiled(self, partial_sample: Begun) -> bool:
        stored = self._stored.get((partial_sample.id, partial_sample.mark))
        return stored is not None and stored.highest >= self.evidence.vocabulary
