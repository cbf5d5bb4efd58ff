"""A round under way, as its learner follows it: the answers so far, and whether more can come."""

from collections.abc import Sequence

from echo_queue.evaluation.results import PromptAnswers
from echo_queue.queue.types import EvaluationRound, ScoredTask, Status

UNSERVED_S = 5.0
"""A round is given up when no worker was seen to serve its version for so long. Heartbeats say at once what changes."""
TOKENS_KEPT = 1 << 22
"""Tokens of answers that are kept of a round, those that come first: 16 MiB."""


class OpenRound:
    """A round that is asked since `asked_s`, and followed since `now_s` (both of one monotonic clock)."""

    def __init__(self, asked: EvaluationRound, asked_s: float, now_s: float) -> None:
        self.number, self.version, self.sets = asked.number, asked.version, asked.sets
        self.asked_s = asked_s
        self.read_up_to = ""
        """The last entry of the scored tasks that was read."""
        self.moved_s = self._served_s = now_s
        """When a task of the round moved last, and when a worker was seen last that serves its version."""
        self._prompts = asked.prompts
        self._places = self._places_of(asked)
        self._answered: dict[str, dict[int, PromptAnswers]] = {name: {} for name in asked.sets}
        self._tokens_left = TOKENS_KEPT

    @property
    def whole(self) -> bool:
        """True once every prompt is answered, or has failed."""
        return sum(map(len, self._answered.values())) == self._prompts

    def answered(self, name: str) -> list[PromptAnswers]:
        """Returns the answers to the prompts of a set so far."""
        return list(self._answered[name].values())

    def add(self, scored: Sequence[ScoredTask]) -> None:
        """Takes the next tasks that are done; one that comes again replaces what came before."""
        for one in scored:
            self._answered.setdefault(one.set, {})[one.index] = self._answers_of(one)
            self.read_up_to = one.entry

    def forget_failures(self, tasks: Sequence[str]) -> None:
        """Forgets which of these tasks have failed: they have all their attempts again."""
        for task in tasks:
            name, _, index = task.split("/")
            answered = self._answered.get(name, {})
            if int(index) in answered and answered[int(index)].reason:
                del answered[int(index)]

    def note(self, asked: EvaluationRound, status: Status, now_s: float) -> None:
        """Notes how far the round is, and who serves its version. Workers may still come to the newest one, or to the
        next."""
        if (places := self._places_of(asked)) != self._places:
            self._places, self.moved_s = places, now_s
        newest = status.published is None or status.published.version <= self.version
        serving = any(one.heartbeat and one.heartbeat.version == self.version for one in status.workers)
        if newest or serving or asked.running:
            self._served_s = now_s

    def unserved(self, now_s: float) -> bool:
        """Returns whether no more answers can come, because no worker serves the version."""
        return now_s - self._served_s > UNSERVED_S

    def _answers_of(self, scored: ScoredTask) -> PromptAnswers:
        if scored.group is None:
            return PromptAnswers(scored.index, reason=scored.reason)
        tokens = len(scored.group.prompt) + sum(len(sample.tokens) for sample in scored.group.samples)
        kept = tokens <= self._tokens_left
        self._tokens_left -= tokens if kept else 0
        return PromptAnswers.of(scored.group, tokens=kept)

    @staticmethod
    def _places_of(asked: EvaluationRound) -> tuple[int, int, int]:
        return asked.waiting, asked.running, asked.scored
