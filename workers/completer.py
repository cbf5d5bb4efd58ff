"""What becomes of a sample once the engine has ended it: an answer of its environment, or a reward; then its group's
completion. A thread of its own, so that the engine goes on meanwhile.

- Every assignment handed over is completed or failed, unless it is no longer held, or `close` comes first.
- In an interactive environment an ended sample may go on: the observation is appended, and the sample comes back
  through `returned`, for the thread that generates.
- What stops it is raised by `check` in the main thread.
"""

import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from queue import Empty, SimpleQueue

import numpy as np

from echo_queue.config import Config
from echo_queue.queue import Outcome, WorkerQueue
from echo_queue.records import Group, Observed, PartialSample, Tokens, validation
from workers.assignment import Assignment
from workers.environments import Answers, Turn
from workers.environments.scorer import Scorer, ScoringError
from workers.held_leases import HeldLeases
from workers.prompt_encoder import Prompts

log = logging.getLogger(__name__)

ANY_TOKEN = 1 << 31
SEND_AFTER_S = 1.0
"""Scored groups wait for others at most so long."""


@dataclass(frozen=True, eq=False)
class Ended:
    """Sample `number` of an assignment has ended, and stands in it."""

    assignment: Assignment
    number: int


class GroupCompleter(threading.Thread):
    def __init__(
        self, config: Config, worker: str, queue: WorkerQueue, *, scorer: Scorer, prompts: Prompts, held: HeldLeases
    ) -> None:
        super().__init__(name="finishing", daemon=True)
        self.returned: SimpleQueue[Ended] = SimpleQueue()
        """Samples that go on after an observation."""
        self.accepted = 0
        """Groups that the queue accepted."""
        self._worker = worker
        self._queue = queue
        self._scorer = scorer
        self._prompts = prompts
        self._held = held
        self._limits = validation.GroupLimits.of(config, ANY_TOKEN)  # the vocabulary is the engine's own affair
        self._inbox: SimpleQueue[Ended | None] = SimpleQueue()
        self._dealt = 0
        self._handed = 0
        self._error: Exception | None = None

    @property
    def waiting(self) -> int:
        """Samples handed over that it has not yet dealt with."""
        return self._handed - self._dealt

    def take(self, assignment: Assignment, number: int) -> None:
        self._handed += 1
        self._inbox.put(Ended(assignment, number))

    def check(self) -> None:
        """Raises what stopped it, if anything did."""
        if self._error is not None:
            raise self._error

    def close(self, within_s: float) -> None:
        """Ends after what it is at, or is left behind when that takes too long."""
        self._inbox.put(None)
        self.join(timeout=within_s)

    def run(self) -> None:
        try:
            while (batch := self._next()) is not None:
                self._finish(batch)
        except Exception as error:
            self._error = error

    def _next(self) -> list[Ended] | None:
        """All that is there, once there is something; None at the end."""
        batch = [self._inbox.get()]
        while True:
            try:
                batch.append(self._inbox.get_nowait())
            except Empty:
                break
        return None if None in batch else [one for one in batch if one is not None]

    def _finish(self, batch: Sequence[Ended]) -> None:
        scored: list[Group] = []
        sent = time.monotonic()
        for one in batch:
            if (group := self._deal_with(one)) is not None:
                scored.append(group)
            if time.monotonic() - sent > SEND_AFTER_S:
                self._send(scored)
                scored, sent = [], time.monotonic()
        self._send(scored)
        self._dealt += len(batch)

    def _deal_with(self, ended: Ended) -> Group | None:
        """Its group, if that is whole now. A reason why it never can be costs the task an attempt."""
        assignment = ended.assignment
        if not self._held.holds(assignment.id):
            return None
        try:
            if self._scorer.interactive:
                self._interact(assignment, ended.number)
            elif assignment.ended:
                assignment.rewards[:] = self._scorer.score(self._answers(assignment))
            if not assignment.scored:
                return None
            group = assignment.group(self._worker)
            validation.check(group, self._limits)
        except (ScoringError, validation.BadGroup) as error:
            self._fail(assignment, str(error))
            return None
        return group

    def _interact(self, assignment: Assignment, number: int) -> None:
        """The environment's answer to what the model wrote last: an observation, or the reward."""
        partial_sample = assignment.samples[number]
        turn = Turn(
            prompt=assignment.row.prompt,
            columns=assignment.row.columns,
            seed=assignment.session_seed(number),
            completions=[self._prompts.decode(part.tolist()) for part in written(partial_sample)],
            last=partial_sample.finish == "length",
        )
        reply = self._scorer.reply(turn)
        if reply.observation is None:
            assignment.rewards[number] = reply.reward
            return
        observed = self._prompts.observe(assignment.row, reply.observation)
        assignment.samples[number] = observing(partial_sample, observed, assignment.limit)
        ended = Ended(assignment, number)
        if assignment.samples[number].finish:
            self._interact(assignment, number)
        else:
            self.returned.put(ended)

    def _answers(self, assignment: Assignment) -> Answers:
        tokens = [sample.tokens.tolist() for sample in assignment.samples]
        return Answers(
            prompt=assignment.row.prompt,
            completions=[self._prompts.decode(one) for one in tokens],
            completion_ids=tokens,
            columns=assignment.row.columns,
        )

    def _send(self, groups: Sequence[Group]) -> None:
        outcomes = self._queue.complete(self._worker, groups)
        self._held.drop([group.task for group in groups])
        self.accepted += outcomes.count(Outcome.accepted)
        for group, outcome in zip(groups, outcomes, strict=True):
            if outcome is not Outcome.accepted:
                log.info("task %s came %s, generated by version %d", group.task, outcome, group.oldest)

    def _fail(self, assignment: Assignment, reason: str) -> None:
        """Its samples are of no use any more. What was handed back meanwhile costs no attempt: an environment that hung
        ends with the worker."""
        if not self._held.drop([assignment.id]):
            return
        self._queue.fail(self._worker, assignment.id, reason)
        last = reason.strip().splitlines()[-1]
        log.warning("task %s failed, attempt %d: %s", assignment.id, assignment.task.attempt + 1, last)


def written(partial_sample: PartialSample) -> list[Tokens]:
    """What the model wrote, turn by turn: the token ids between observations, none after one that ends the partial."""
    starts = [0, *(observed.end for observed in partial_sample.observed)]
    ends = [*(observed.start for observed in partial_sample.observed), len(partial_sample.tokens)]
    return [partial_sample.tokens[start:end] for start, end in zip(starts, ends, strict=True) if start < end]


def observing(partial_sample: PartialSample, tokens: Tokens, limit: int) -> PartialSample:
    """`partial_sample` after an observation of `tokens`, which ends it by its length if it leaves the model no room."""
    tokens = tokens[: limit - len(partial_sample.tokens)]
    start, end = len(partial_sample.tokens), len(partial_sample.tokens) + len(tokens)
    return replace(
        partial_sample,
        tokens=np.concatenate([partial_sample.tokens, tokens]),
        logprobs=np.concatenate([partial_sample.logprobs, np.zeros(len(tokens), np.float32)]),
        observed=(*partial_sample.observed, Observed(start, end)),
        finish="length" if end == limit else None,
    )
