"""One rollout worker: lease tasks, serve new enough weights, generate, score, complete.

- A task is generated with weights of at least its `min_pv`, none that a restart of the learner has abandoned; every
  token of a call comes from one version, which its group names.
- What cannot be done, a prompt that cannot be had included, costs a task one attempt with the reason, never a reward;
  what is lost or no longer wanted is dropped; what cannot be finished in time on leaving is handed back.
- New weights are fetched, verified and staged while generation goes on and are taken between calls, at a gate.
- An engine that may hold parts of two versions is quarantined: the worker generates nothing and holds no lease until it
  has loaded weights anew from an anchor; if that fails as well, it is one clear error.
- Killed at any instant, it leaves nothing but leases that expire.
"""

import logging
import threading
import time
from dataclasses import dataclass
from functools import cached_property

from blake3 import blake3

from echo_queue import stall, vetting
from echo_queue.config import Config
from echo_queue.errors import DeadlineError, EchoQueueError, Problem, PromptError
from echo_queue.queue import Lease, Outcome, Queue
from echo_queue.records import Group, PromptRow, Sample, Span, Task, Version
from echo_queue.submission.shards import BadShard, ShardReader
from workers.engines import Completion, Engine, Prompt, Sampling
from workers.environments import Answers
from workers.environments.scorer import Scorer, ScoringError
from workers.follower import Follower, Staged
from workers.heart import Call, Heart
from workers.prompts import Prompts
from workers.weights.gate import Gate, Spoilt

log = logging.getLogger(__name__)

IDLE_S = 1.0
ANY_TOKEN = 1 << 31
SEND_AFTER_S = 1.0
"""Scored groups wait for the others of their call at most so long."""
WORK = ("admitted", "advanced", "published", "resumed", "returned", "revived", "finished")
"""Events after which there may be a task to lease."""


@dataclass(frozen=True, eq=False)
class Assignment:
    """A task with what it takes to generate and score it."""

    task: Task
    row: PromptRow
    prompt: Prompt


@dataclass(frozen=True, eq=False)
class Rollout:
    """The loop, and the parts it works with. Once `leaving` is set, `run` returns soon."""

    config: Config
    name: str
    queue: Queue
    engine: Engine
    prompts: Prompts
    shards: ShardReader
    scorer: Scorer
    follower: Follower
    gate: Gate
    heart: Heart
    leaving: threading.Event

    def run(self) -> None:
        self.scorer.wait_ready()
        self._catch_up()
        cursor, moved = "0-0", time.monotonic()
        while not self.leaving.is_set():
            self.heart.check()
            self.follower.check()
            self._load(self.follower.take())
            lease = self.queue.lease(self.name, self.engine.version, groups_per_lease(self.config))
            if lease.finished:
                log.info("the run is finished")
                return
            if lease.tasks:
                self._roll(lease)
                moved = time.monotonic()
                continue
            self.heart.state = "idle"
            before, cursor = cursor, self.queue.wait(cursor, IDLE_S, WORK)
            moved = time.monotonic() if cursor != before else moved
            if time.monotonic() - moved > self.config.queue.stall_deadline_s:
                self._give_up(lease, time.monotonic() - moved)

    def _give_up(self, lease: Lease, still_s: float) -> None:
        mend = "`echo-queue status` says who holds the run up; or raise queue.stall_deadline_s"
        raise DeadlineError(Problem("tasks", stall.of_worker(lease, self.engine.version, still_s), mend))

    def _catch_up(self) -> None:
        """Starts with the newest weights there are."""
        published = self.queue.published()
        if published is not None and published.version != self.engine.version:
            self._refresh(published.version)

    def _refresh(self, needed: Version) -> None:
        """Loads weights that are `needed` or newer."""
        self.heart.state = "fetching"
        self._load(self.follower.wait_for(needed, self.config.queue.stall_deadline_s, self.leaving))

    def _load(self, staged: Staged | None) -> None:
        """Through the gate; an engine that is spoilt there is built anew, or ends this worker."""
        if staged is None:
            return
        try:
            self._swap(staged)
        except Spoilt as error:
            log.error("quarantined, weights are built anew from an anchor: %s", error)
            self.heart.state = "quarantined"
            self._hand_back(self.heart.call)
            self._rebuild(staged.version, error)

    def _rebuild(self, needed: Version, first: Spoilt) -> None:
        anew = self.follower.rebuild(needed, self.config.queue.stall_deadline_s, self.leaving)
        if anew is None:
            return
        try:
            self._swap(anew)
        except Spoilt as second:
            raise EchoQueueError(*second.problems, *first.problems) from second

    def _swap(self, staged: Staged) -> None:
        with staged:
            self.gate.swap(staged.manifest, staged.tensors)
        self.heart.serve(staged.published, self.gate.pause_s)
        log.info("serves version %s after a pause of %.0f ms", staged.version, 1000 * self.gate.pause_s)

    def _roll(self, lease: Lease) -> None:
        """One call: every task leased leaves it completed, failed, lost or handed back.

        An error nobody foresaw leaves them leased instead, so that a task which kills workers runs out of attempts.
        """
        needed = weights_needed(lease, self.engine.version)
        call = self.heart.call = Call(lease.tasks, (needed or self.engine.version).number)
        try:
            if needed is not None:
                self._refresh(needed)
                call.version = self.engine.version.number
            if call.held and not self.leaving.is_set():
                assignments = [made for task in lease.tasks if (made := self._assign(call, task))]
                self._finish(call, assignments, self._generate(call, assignments))
        except EchoQueueError:
            self._hand_back(call)
            raise
        self._hand_back(call)

    def _assign(self, call: Call, task: Task) -> Assignment | None:
        try:
            row = self.shards.row(task)
            tokens = self.prompts.encode(row)
        except (BadShard, PromptError) as error:
            self._fail(call, task, str(error))
            return None
        return Assignment(task, row, Prompt(tokens, seed(self.config.run.seed, self.name, task)))

    def _generate(self, call: Call, assignments: list[Assignment]) -> list[list[Completion]]:
        self.heart.state = "generating"
        prompts = [assignment.prompt for assignment in assignments]
        rollout = self.config.rollout
        sampling = Sampling(self.config.model.max_new_tokens, rollout.temperature, rollout.top_p)
        return self.engine.generate(prompts, rollout.group_size, sampling, call.stop)

    def _finish(self, call: Call, assignments: list[Assignment], groups: list[list[Completion]]) -> None:
        """Scores and sends. Groups that scored quickly do not wait for those that take long."""
        self.heart.state = "scoring"
        scored: list[Group] = []
        sent = time.monotonic()
        for assignment, completions in zip(assignments, groups, strict=True):
            if not call.holds(assignment.task) or any(one.finish == "abort" for one in completions):
                continue
            try:
                rewards = self.scorer.score(self._answers(assignment, completions))
                group = self._group(assignment, completions, rewards)
                vetting.check(group, self._limits)
            except (ScoringError, vetting.BadGroup) as error:
                self._fail(call, assignment.task, str(error))
            else:
                scored.append(group)
            if time.monotonic() - sent > SEND_AFTER_S:
                self._send(call, scored)
                scored, sent = [], time.monotonic()
        self._send(call, scored)

    @cached_property
    def _limits(self) -> vetting.Limits:
        """The learner's, but for the vocabulary, which is the engine's own affair."""
        return vetting.Limits.of(self.config, ANY_TOKEN)

    def _answers(self, assignment: Assignment, completions: list[Completion]) -> Answers:
        return Answers(
            prompt=assignment.row.prompt,
            completions=[self.prompts.decode(completion.tokens.tolist()) for completion in completions],
            completion_ids=[completion.tokens.tolist() for completion in completions],
            columns=assignment.row.columns,
        )

    def _group(self, assignment: Assignment, completions: list[Completion], rewards: list[float]) -> Group:
        task, version = assignment.task, self.engine.version
        spans = (Span(0, version.number),)
        samples = tuple(
            Sample(completion.tokens, completion.logprobs, spans, reward, completion.finish)
            for completion, reward in zip(completions, rewards, strict=True)
        )
        return Group(
            task=task.id,
            set=task.set,
            epoch=task.epoch,
            index=task.index,
            attempt=task.attempt,
            worker=self.name,
            lineage=version.lineage,
            prompt=assignment.prompt.tokens,
            samples=samples,
        )

    def _send(self, call: Call, groups: list[Group]) -> None:
        outcomes = self.queue.complete(self.name, groups)
        call.drop(group.task for group in groups)
        self.heart.accepted += outcomes.count(Outcome.accepted)
        for group, outcome in zip(groups, outcomes, strict=True):
            if outcome is not Outcome.accepted:
                log.info("task %s came %s, generated by version %d", group.task, outcome, group.oldest)

    def _fail(self, call: Call, task: Task, reason: str) -> None:
        self.queue.fail(self.name, task.id, reason)
        call.drop([task.id])
        log.warning("task %s failed, attempt %d: %s", task.id, task.attempt + 1, reason.strip().splitlines()[-1])

    def _hand_back(self, call: Call) -> None:
        held = call.held
        if held:
            self.queue.release(self.name, held)
            call.drop(held)
            log.info("handed back %d tasks", len(held))


def groups_per_lease(config: Config) -> int:
    """At S = 0 there is one batch to lease at a time: this machine's workers share it."""
    share = -(-config.learner.batch_groups // config.rollout.workers)
    return min(config.rollout.concurrent_groups, share) if config.staleness.s == 0 else config.rollout.concurrent_groups


def weights_needed(lease: Lease, serving: Version) -> Version | None:
    """The oldest weights that may generate all tasks of a lease; None if those that are served may."""
    if lease.published is None:
        return None
    number = max(task.min_pv for task in lease.tasks)
    if lease.abandoned:
        return lease.published.version
    return Version(lease.published.version.lineage, number) if serving.number < number else None


def seed(run: int, worker: str, task: Task) -> int:
    """Of a group's samples: another one for each run, worker and try. 63 bits."""
    digest = blake3(f"{run} {worker} {task.id} {task.attempt} {task.late}".encode()).digest(8)
    return int.from_bytes(digest, "little") >> 1
