"""The thread that scores samples once they have ended, and completes their groups in the queue.

The engine goes on generating meanwhile.

- Every assignment submitted is completed or failed, unless it is no longer held or `close` is called first.
- The environment has many calls at a time; this thread waits for the answers, and asks the oldest groups' first.
- In an interactive environment an ended sample may continue: the observation is appended, and the sample returns to the
  rollout loop through `returned`.
- The figures that it notes are those of training; evaluations do not count.
- Whatever an item makes this thread raise costs the item's task an attempt, with that error as the reason. Only the
  error of a service, or of an environment that cannot be made, ends the thread; `check` raises it in the main thread.
"""

import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from queue import SimpleQueue
from typing import NamedTuple, Protocol

import numpy as np

from echo_queue.checked_thread import CheckedThread
from echo_queue.config import Config
from echo_queue.errors import EchoQueueError
from echo_queue.queue import Outcome
from echo_queue.queue.generation_times import RECENT
from echo_queue.queue.reasons import in_one_line
from echo_queue.records import Group, Observed, PartialSample, Tokens, validation
from workers.assignment import Assignment
from workers.environments import Reply, ScoringRequest, Turn
from workers.environments.calls import Call, ScoringError
from workers.environments.scorer import Scorer
from workers.environments.tracebacks import Frame, formatted
from workers.held_leases import HeldLeases
from workers.item_errors import at_once, is_of_item
from workers.prompt_encoder import PromptEncoder

log = logging.getLogger(__name__)

ANY_TOKEN = 1 << 31
"""A bound above every vocabulary: the token ids come from this worker's engine and need no check."""
TOKEN_MAX_CHARACTERS = 256
"""No vocabulary has a longer token, so the rest of an observation finds no room, and need not be encoded."""
SEND_AFTER_S = 0.2
"""The longest time that scored groups wait for others, to be sent in one call."""
IDLE_S = 1.0


@dataclass(frozen=True, eq=False)
class EndedSample:
    """Sample `number` of an assignment, which has ended."""

    assignment: Assignment
    number: int


class ScoredGroup(NamedTuple):
    """A whole group, and the assignment that it comes from."""

    group: Group
    assignment: Assignment


class Completions(Protocol):
    """The two moves of `WorkerQueue` that end a task."""

    def complete(self, worker: str, groups: Sequence[Group]) -> list[Outcome]: ...
    def fail(self, worker: str, task_id: str, reason: str) -> bool: ...


class TrainingFigures:
    """What a worker has to tell of the groups to train that it makes. All of its completers note it; anybody reads."""

    def __init__(self) -> None:
        self.accepted = 0
        """Number of groups to train that the queue accepted."""
        self.generation_s: tuple[float, ...] = ()
        """Times from lease to acceptance of the last of them that this worker generated from their beginning."""
        self.scoring_s = 0.0
        """The mean time of the last calls of environments about them, from the question to the answer."""
        self._calls = 0
        self._lock = threading.Lock()

    def note_call(self, took_s: float) -> None:
        """Moves the mean by the newest call; the first ones weigh alike."""
        with self._lock:
            self._calls += 1
            self.scoring_s += (took_s - self.scoring_s) / min(self._calls, RECENT)

    def note_accepted(self, assignment: Assignment) -> None:
        """Counts a group that is to be trained: the fleet is planned by these figures."""
        with self._lock:
            self.accepted += 1
            if not assignment.continued:
                self.generation_s = (*self.generation_s, time.monotonic() - assignment.leased_s)[-RECENT:]


class GroupCompleter(CheckedThread):
    """Takes ended samples from the rollout loop (`submit`) and completes their groups in the queue."""

    def __init__(
        self,
        config: Config,
        worker: str,
        queue: Completions,
        *,
        scorer: Scorer,
        prompts: PromptEncoder,
        held: HeldLeases,
        returned: "SimpleQueue[EndedSample]",
        figures: TrainingFigures,
    ) -> None:
        """`returned`: gets the samples that continue after an observation."""
        super().__init__("group completer")
        self.returned = returned
        self.interactive = scorer.interactive
        self._figures = figures
        self._worker = worker
        self._queue = queue
        self._scorer = scorer
        self._prompts = prompts
        self._held = held
        self._limits = validation.GroupLimits.of(config, ANY_TOKEN)
        self._inbox: SimpleQueue[EndedSample | None] = SimpleQueue()
        self._told: set[Frame] = set()
        """The places in the user's module whose frames the log has already; later failures there add one line each."""
        self._scored: dict[str, ScoredGroup] = {}
        self._scored_s = 0.0
        """When the first of the groups was scored that are to be sent."""
        self._closing = False
        self._done = 0
        self._submitted = 0

    @property
    def waiting(self) -> int:
        """The number of samples that were submitted and are not yet scored or dropped."""
        return self._submitted - self._done

    @property
    def behind(self) -> int:
        """The number of them that no process of the environment has yet: it is slower than the engine."""
        return self._inbox.qsize() + self._scorer.waiting

    def submit(self, assignment: Assignment, number: int) -> None:
        """Main thread: hands over sample `number`, which has ended."""
        self._submitted += 1
        self._inbox.put(EndedSample(assignment, number))
        self._scorer.wake()

    def close(self, within_s: float) -> None:
        """Ends the thread after the calls under way; leaves it behind if that takes longer than `within_s`."""
        self._inbox.put(None)
        self._scorer.wake()
        self.join(timeout=within_s)

    def work(self) -> None:
        while not self._closing or self._scorer.under_way:
            self._take()
            for call in self._scorer.wait(self._pause_s()):
                self._answered(call)
            if self._scored and (not self._scorer.under_way or time.monotonic() > self._scored_s + SEND_AFTER_S):
                self._send_scored()
        self._send_scored()

    def _pause_s(self) -> float:
        """Returns how long to wait for calls: until scored groups are to be sent, if there are any."""
        return max(0.0, self._scored_s + SEND_AFTER_S - time.monotonic()) if self._scored else IDLE_S

    def _take(self) -> None:
        """Asks the environment about the samples that were submitted. At the end, those under way are all."""
        while not self._inbox.empty():
            if (ended := self._inbox.get_nowait()) is None:
                self._closing = True
            else:
                self._ask(ended)
        if self._closing:
            self._scorer.forget_waiting()

    def _ask(self, ended: EndedSample) -> None:
        assignment, number = ended.assignment, ended.number
        if not self._held.holds(assignment.task):
            self._done += 1
            return
        try:
            question = self._turn(assignment, number) if self.interactive else self._scoring_request(assignment)
        except Exception as error:
            self._done += 1
            self._fail_for(assignment, error)
            return
        session = (assignment.id, number) if self.interactive else None
        self._scorer.ask(Call(question, assignment.leased_s, session, about=ended))

    def _answered(self, call: Call) -> None:
        """Takes an answer over; the group is to be sent if that was the last of it."""
        ended: EndedSample = call.about
        assignment = ended.assignment
        self._done += 1
        if not assignment.held_out:
            self._figures.note_call(time.monotonic() - call.asked_s)
        if not self._held.holds(assignment.task):
            return
        try:
            if self.interactive:
                self._take_reply(ended, call.reply)
            else:
                assignment.rewards[:], assignment.parts = call.rewards.values, call.rewards.parts
            if assignment.scored:
                group = assignment.group(self._worker)
                validation.check(group, self._limits)
                self._scored_s = self._scored_s if self._scored else time.monotonic()
                # By task: the newest, begun from scratch or under a newer lease.
                self._scored[group.task] = ScoredGroup(group, assignment)
        except Exception as error:
            self._fail_for(assignment, error)

    def _turn(self, assignment: Assignment, number: int) -> Turn:
        partial_sample = assignment.samples[number]
        return Turn(
            prompt=assignment.row.prompt,
            columns=assignment.row.columns,
            seed=assignment.session_seed(number),
            completions=[self._prompts.decode(part.tolist()) for part in model_turns(partial_sample)],
            last=partial_sample.finish == "length",
        )

    def _take_reply(self, ended: EndedSample, reply: Reply) -> None:
        """Appends the environment's observation to the sample, or sets its reward."""
        assignment, number = ended.assignment, ended.number
        if reply.observation is None:
            assignment.rewards[number] = reply.reward
            return
        partial_sample = assignment.samples[number]
        room = assignment.limit - len(partial_sample.tokens)
        observed = self._prompts.observe(assignment.row, reply.observation[: room * TOKEN_MAX_CHARACTERS])
        if room and not len(observed):
            raise ScoringError(f"the environment's observation {reply.observation!r} is empty: it has no tokens")
        assignment.samples[number] = with_observation(partial_sample, observed, assignment.limit)
        if assignment.samples[number].finish:
            self._done -= 1
            self._ask(ended)
        else:
            self.returned.put(ended)

    def _scoring_request(self, assignment: Assignment) -> ScoringRequest:
        tokens = [sample.tokens.tolist() for sample in assignment.samples]
        return ScoringRequest(
            prompt=assignment.row.prompt,
            completions=[self._prompts.decode(one) for one in tokens],
            completion_ids=tokens,
            columns=assignment.row.columns,
            finish_reasons=[str(sample.finish) for sample in assignment.samples],
            versions=[sample.spans[-1].version for sample in assignment.samples],
        )

    def _send_scored(self) -> None:
        scored, self._scored = list(self._scored.values()), {}
        at_once(self._complete, scored, lambda one, error: self._fail_for(one.assignment, error))

    def _complete(self, scored: Sequence[ScoredGroup]) -> None:
        outcomes = self._queue.complete(self._worker, [one.group for one in scored])
        self._held.drop([one.assignment.task for one in scored])
        for (group, assignment), outcome in zip(scored, outcomes, strict=True):
            if outcome is Outcome.accepted and not assignment.held_out:
                self._figures.note_accepted(assignment)
            elif outcome is not Outcome.accepted:
                log.info(
                    "the group of task %s was not accepted: %s (oldest version %d)", group.task, outcome, group.oldest
                )

    def _fail_for(self, assignment: Assignment, error: Exception) -> None:
        """Fails the task of an error that an item has made. Raises any other error."""
        if not is_of_item(error):
            raise error
        match error:
            case ScoringError():
                self._fail(assignment, str(error), error.frames)
            case EchoQueueError():
                self._fail(assignment, str(error), ())
            case _:
                self._fail(assignment, formatted(error), ())

    def _fail(self, assignment: Assignment, reason: str, frames: Sequence[Frame]) -> None:
        """Fails the task, whose samples are then useless. `frames`: where in the user's module its scoring failed.

        A task that was handed back meanwhile loses no attempt: its environment may have failed only because it was
        ended together with the worker.
        """
        if not self._held.drop([assignment.task]):
            return
        self._queue.fail(self._worker, assignment.id, reason)
        attempt = assignment.task.attempt + 1
        log.warning("task %s failed, attempt %d: %s", assignment.id, attempt, in_one_line(reason))
        if frames and frames[-1] not in self._told:
            self._told.add(frames[-1])
            log.warning("it raised in the code of the environment:%s", "".join(f"\n    {one}" for one in frames))


def model_turns(partial_sample: PartialSample) -> list[Tokens]:
    """Returns the model's turns: the token ids between observations, none after an observation that ends the sample."""
    starts = [0, *(observed.end for observed in partial_sample.observed)]
    ends = [*(observed.start for observed in partial_sample.observed), len(partial_sample.tokens)]
    return [partial_sample.tokens[start:end] for start, end in zip(starts, ends, strict=True) if start < end]


def with_observation(partial_sample: PartialSample, tokens: Tokens, limit: int) -> PartialSample:
    """Appends the part of an observation that finds room. It ends the sample by its length if the model has none left.

    An observation that finds no room at all is not recorded.
    """
    tokens = tokens[: limit - len(partial_sample.tokens)]
    start, end = len(partial_sample.tokens), len(partial_sample.tokens) + len(tokens)
    part = (Observed(start, end),) if start < end else ()
    return replace(
        partial_sample,
        tokens=np.concatenate([partial_sample.tokens, tokens]),
        logprobs=np.concatenate([partial_sample.logprobs, np.zeros(len(tokens), np.float32)]),
        observed=(*partial_sample.observed, *part),
        finish="length" if end == limit else None,
    )
