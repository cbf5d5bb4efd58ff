"""Every order of moves that Hypothesis finds, on the real Lua library in a real Redis, against `reference`.

- After each move Redis holds exactly what the reference says, place by place, and has answered what it says; any reply
  may get lost, so that the move is made twice.
- A learner resumes from its checkpoints as `learner/recovery/resume.py` does. It may die, hang and wake up, lose its
  newest checkpoint, be rewound; Redis may be set back to what it held before.
- However a story went, in the end each prompt was trained exactly once in the surviving checkpoints.
"""

import copy
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial, wraps
from itertools import count
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from echo_queue.errors import FencedError, SetBackError
from echo_queue.launch.servers.redis_server import RedisServer
from echo_queue.queue import Chunk, FleetQueue, Heartbeat, PromptSet, RunRules, UpdateRecord, WorkerOrder
from echo_queue.queue.caller import Caller
from echo_queue.records import BASE, PartialGroup, PromptShard, Published, Task, Version, partial_codec
from tests.faults.reference_machine.reference import FENCED, SET_BACK, PartialSample, Reference, Refused
from tests.faults.reference_machine.snapshot import WORKERS, expected, look
from tests.queue.clients import Clients
from tests.queue.queue_harness import group_of, partial_of, run_out

_runs = count()
CHUNKS = ((0, 2), (2, 2))
BUCKETS = ((1, 2), (1, 0))
"""The buckets of the prompts of each chunk."""
CONTROLLERS = ("c1", "c2")
MIXTURES = ("", "a:3 b:1", "c:9 b:0.3 a:0.1")
"""The sets a and b are in the backlog by order of priority, or are components."""
STEP = 2
"""The ids of a step of a commit."""
MOST_STEPS = 100
"""More steps than any commit has."""
Step = tuple[str, str, tuple[str, ...]]
"""A step of a commit: where the queue stands before and after it, and its ids."""
pick = st.integers(0, 5)
"""One of those there are: the number modulo how many."""


def move(**choices: Any) -> Callable[[Callable[..., None]], Any]:
    """A rule after which Redis must hold what the reference says. (An `invariant` would be told at each step.)"""

    def decorate(step: Callable[..., None]) -> Any:
        @wraps(step)
        def checked(self: "Machine", *args: Any, **chosen: Any) -> None:
            self.depth += 1
            step(self, *args, **chosen)
            self.depth -= 1
            if self.depth == 0:
                self.check()

        return rule(**choices)(checked)

    return decorate


@dataclass(frozen=True)
class Checkpoint:
    name: str
    version: int
    parent: str
    trained: tuple[str, ...]


@dataclass
class Learner:
    """A process with a connection of its own."""

    queue: Clients
    lineage: int
    version: int
    saved: str
    turn: int = 0
    hand: list[str] = field(default_factory=list)
    skipped: int = 0
    """The number of groups in hand that it has skipped."""
    trained: list[str] = field(default_factory=list)
    ended: bool = False


@dataclass(frozen=True)
class Work:
    """`oldest`: of the partial rollout that the worker went on with."""

    worker: str
    task: Task
    version: Version
    oldest: int | None = None

    def begun(self, before: int) -> int:
        """The version of its oldest token; if it has begun it itself, so many versions before the one it serves."""
        return max(0, self.version.number - before) if self.oldest is None else self.oldest


class RepeatingCaller(Caller):
    """Loses the reply of each move while `lost` is set, so that it is made a second time, with the same words."""

    lost = False
    newest = ""
    """The step made last."""

    def persist(self, step: str, send: Callable[[], Any], about: object = None) -> Any:
        self.newest = step
        return super().persist(step, send, about)

    def _try(self, send: Callable[[], Any]) -> Any:
        if self.lost:
            super()._try(send)
        return super()._try(send)


class Machine(RuleBasedStateMachine):
    """Two sets of four prompts, one more that is held out, three workers, and as many learners as are started."""

    server: RedisServer
    depth = 0
    """Rules within rules."""

    @initialize(
        s=st.integers(0, 2), batch=st.integers(1, 3), pace=st.booleans(), late=st.sampled_from(["requeue", "wait"]),
        shuffled=st.booleans(), epochs=st.integers(1, 2), longest_first=st.booleans(),
        curriculum=st.sampled_from(["off", "mopps", "dopr"]), window=st.integers(1, 5),
        mixture=st.sampled_from(MIXTURES),
    )  # fmt: skip
    def begin(
        self,
        *,
        s: int,
        batch: int,
        pace: bool,
        late: str,
        shuffled: bool,
        epochs: int,
        longest_first: bool,
        curriculum: str,
        window: int,
        mixture: str,
    ) -> None:
        rules: Any = {"late": late, "longest_first": longest_first, "mixture": mixture}
        rules |= {"curriculum": curriculum, "curriculum_window": window}
        rules = RunRules(s=s, batch=batch, pace=pace, max_attempts=2, **rules)
        self.name = f"machine-{os.getpid()}-{next(_runs)}"
        self.queue, self.run = self._connect(), Reference(rules)
        self.queue.configure(rules)
        self.store: dict[str, Checkpoint] = {}
        self.damaged: set[str] = set()
        self.work: list[Work] = []
        self.sent: dict[tuple[str, str], PartialSample | None] = {}
        self.weights = [Version(0, 0)]
        self.learners: list[Learner] = []
        self.controllers: dict[str, tuple[FleetQueue, int]] = {}
        self.before: tuple[dict[bytes, bytes], Reference] | None = None
        for name, order in (("a", "sequential"), ("b", "shuffled" if shuffled else "sequential"), ("h", "held_out")):
            rules = PromptSet(name, "source", epochs=epochs, priority=ord(name), order=order)  # type: ignore[arg-type]
            self.queue.declare(rules, [Chunk(at, first, size) for at, (first, size) in enumerate(CHUNKS)])
            self.run.declare(rules, CHUNKS)
            self.submit(name, 0)
        self.restart()

    # Submitters and workers -------------------------------------------------------------------------------------------

    @move(name=st.sampled_from("abh"), chunk=st.integers(0, 1), lost=st.booleans())
    def submit(self, name: str, chunk: int, lost: bool = False) -> None:
        shard = PromptShard("shard", *CHUNKS[chunk])
        self._both(
            lost,
            lambda: self.queue.submit(name, chunk, shard, bytes(BUCKETS[chunk])),
            lambda: self.run.submit(name, chunk, BUCKETS[chunk]),
        )

    @move(worker=st.sampled_from(WORKERS), size=st.integers(1, 4), old=st.integers(0, 2), lost=st.booleans())
    def lease(self, worker: str, size: int, old: int = 0, lost: bool = False) -> None:
        """Leases to a worker that serves the newest weights, or slightly older ones."""
        version, token = self.weights[-1 - min(old, len(self.weights) - 1)], str(next(_runs))
        before = self.run.abandoned(version)
        real = self._real(lost, lambda: self.queue.lease(worker, version, size))
        mine = self._model(lost, lambda: self.run.lease(worker, version, size, token))
        begun = {task: partial_codec.versions(one) for task, one in real.partials.items()}
        assert [(task.id, task.min_pv, begun.get(task.id)) for task in real.tasks] == mine
        assert (real.abandoned, real.published and real.published.version) == (before, self.run.published)
        for task in real.tasks:
            made_by = version if version.number >= task.min_pv and not real.abandoned else self.run.published
            oldest, _ = begun.get(task.id, (None, 0))
            self.work.append(Work(worker, task, made_by or version, oldest))
            self.sent[worker, task.id] = self.run.partials.get(task.id) if task.id in begun else None

    @precondition(lambda self: self.work)
    @move(which=pick, begun=st.integers(0, 1), lost=st.booleans())
    def complete(self, which: int, begun: int = 0, lost: bool = False) -> None:
        """Completes as a worker that leased the task once, perhaps with a group that the version before began."""
        one = self.work.pop(which % len(self.work))
        oldest = one.begun(begun)
        length = 3 + 3 * which  # so that the next epoch has something to put in order
        reward = which % 3 / 4  # the mean of 0 and twice that
        group = group_of(one.task, one.worker, one.version, oldest, length)
        first, second = group.samples
        group = replace(group, samples=(first, replace(second, reward=2 * reward)))
        words = one.worker, one.task.id, one.task.attempt, oldest, one.version
        self._both(
            lost,
            lambda: self.queue.complete(one.worker, [group]),
            lambda: [self.run.complete(*words, tokens=2 * length, reward=reward)],
        )

    @precondition(lambda self: self.work)
    @move(which=pick, begun=st.integers(0, 1), further=st.integers(0, 2), lost=st.booleans())
    def progress(self, which: int, begun: int = 0, further: int = 0, lost: bool = False) -> None:
        """Fails the task, as a worker that leased it once."""
        one = self.work[which % len(self.work)]
        oldest, (lineage, newest) = one.begun(begun), one.version
        kept = PartialGroup(one.task.id, lineage, (partial_of(oldest), partial_of(newest, 2 + further)))
        mine = PartialSample(oldest, newest, lineage, 4 + further)
        caller: Any = self.queue.caller
        caller.newest = ""
        answered = self._real(lost, lambda: self.queue.progress(one.worker, [kept]))
        if caller.newest:
            assert answered == self._model(lost, lambda: self.run.progress(one.worker, one.task.id, mine))
            if not answered:  # else the worker holds the task no more, and its client notes nothing
                self.sent[one.worker, one.task.id] = mine
        else:  # a client that has nothing new to tell does not ask whether the task is still held
            assert (answered, self.sent[one.worker, one.task.id]) == ([], mine)

    @precondition(lambda self: self.work)
    @move(which=pick, how=st.sampled_from(["renew", "release", "fail", "die"]), lost=st.booleans())
    def give_up(self, which: int, how: str, lost: bool = False) -> None:
        one = self.work[which % len(self.work)]
        who, task, version = one.worker, one.task.id, one.version.number
        if how == "renew":
            held = {task: version}
            self._both(lost, lambda: self.queue.renew(who, held), lambda: self.run.renew(who, held))
            return
        self.work.remove(one)
        if how == "release":
            self._both(lost, lambda: self.queue.release(who, [task]), lambda: self.run.release(who, [task]))
        elif how == "fail":
            self._both(lost, lambda: self.queue.fail(who, task, "why"), lambda: self.run.fail(who, task))

    @move(worker=st.sampled_from(WORKERS), lost=st.booleans())
    def evict(self, worker: str, lost: bool = False) -> None:
        """An operator takes back what a worker holds, which may yet complete what it has in hand."""
        self._both(lost, lambda: self.queue.evict(worker), lambda: self.run.evict(worker))

    @move(which=pick, lost=st.booleans())
    def reclaim(self, which: int, lost: bool = False) -> None:
        """A lease runs out, if there is one; then a sweep."""
        held = sorted(self.run.leases)
        if held:
            self._run_out(held[which % len(held)])
        self._both(lost, lambda: tuple(vars(self.queue.reclaim()).values()), self.run.reclaim)

    # The fleet's controllers ------------------------------------------------------------------------------------------

    @move(name=st.sampled_from(CONTROLLERS), lost=st.booleans())
    def lead(self, name: str, lost: bool = False) -> None:
        """A controller leads, for no time at all, so that the other one may depose it."""
        controller = self.controllers[name][0] if name in self.controllers else self.queue.controller(name)
        term = self._real(lost, lambda: controller.lead(0.0))
        assert (term.number, term.plan.decode()) == self._model(lost, lambda: self.run.lead(name))
        self.controllers[name] = controller, term.number

    @precondition(lambda self: self.controllers)
    @move(name=st.sampled_from(CONTROLLERS), worker=st.sampled_from(WORKERS), rests=st.booleans(), lost=st.booleans())
    def order(self, name: str, worker: str, rests: bool = False, lost: bool = False) -> None:
        """A controller, which may be deposed, plans and orders; the worker hears what holds with its next heartbeat."""
        if name not in self.controllers:
            return
        controller, term = self.controllers[name]
        order, plan = WorkerOrder("rest" if rests else "leave", 2.0), f"{worker} {rests}"
        words = worker, f"{order.word} 2000"
        moves: tuple[tuple[Callable[[], Any], Callable[[], Any]], ...] = (
            (lambda: controller.plan(plan.encode(), {"spot": 1}), lambda: self.run.plan(name, term, plan)),
            (lambda: controller.order(order, [worker]), lambda: self.run.order(name, term, words)),
        )
        for real, mine in moves:
            try:
                self._model(lost, mine)
            except Refused:
                with pytest.raises(FencedError):
                    self._real(lost, real)
            else:
                self._real(lost, real)
        heard = self.queue.heartbeat(worker, Heartbeat("engine", BASE, "idle"), every_s=60.0)
        told = self.run.orders.get(worker)
        assert (heard and f"{heard.word} {round(1000 * heard.within_s)}") == told

    # The learner ------------------------------------------------------------------------------------------------------

    @precondition(lambda self: self._alive())
    @move(size=st.integers(1, 3), lost=st.booleans(), ghost=st.booleans())
    def drain(self, size: int, lost: bool = False, ghost: bool = False) -> None:
        me = self._one(ghost)
        real = self._turn(me, lost, lambda: me.queue.drain(me.lineage, size),
                          lambda: self.run.drain(me.lineage, me.turn + 1, size))  # fmt: skip
        if real is None:
            return
        real, mine = real
        ids = [group.task for group in real.groups]
        assert (ids, real.seats, real.late, real.abandoned, real.outside) == mine
        for group in real.groups:
            assert self.run.v - group.oldest <= self.run.rules.s
        me.hand += ids

    @precondition(lambda self: self._alive())
    @move(window=st.sampled_from([1.0, 2.5]), lost=st.booleans(), ghost=st.booleans())
    def update(self, window: float = 2.5, lost: bool = False, ghost: bool = False) -> None:
        me = self._one(ghost)
        version, size = me.version + 1, len(me.hand) - me.skipped
        told = Version(me.lineage, me.version)

        def advance_and_record() -> int:
            try:
                return self.run.advance(me.lineage, me.turn + 1, version, size, window)
            finally:
                self.run.record(told)

        me.queue.record(me.lineage, [UpdateRecord(told, "0.1.0", "a/0/0", b"{}")])
        moved = self._turn(me, lost, lambda: me.queue.advance(me.lineage, version, size, window), advance_and_record)
        if moved is not None:
            assert moved[0] == moved[1]
            me.version, me.trained, me.hand, me.skipped = version, me.trained + me.hand, [], 0

    @precondition(lambda self: self._alive())
    @move(lost=st.booleans(), ghost=st.booleans())
    def skip(self, lost: bool = False, ghost: bool = False) -> None:
        """Skips a group in hand: other prompts are admitted before its update."""
        me = self._one(ghost)
        if me.skipped >= len(me.hand):
            return
        moved = self._turn(me, lost, lambda: me.queue.skip(me.lineage, 1),
                           lambda: self.run.skip(me.lineage, me.turn + 1, 1))  # fmt: skip
        if moved is not None:
            assert moved[0] == moved[1]
            me.skipped += 1

    @precondition(lambda self: self._alive())
    @move(lost=st.booleans(), ghost=st.booleans())
    def publish(self, lost: bool = False, ghost: bool = False) -> None:
        me = self._one(ghost)
        weights = Version(me.lineage, me.version)
        published = Published(weights, "m", "d")
        moved = self._turn(me, lost, lambda: me.queue.publish(me.lineage, published),
                           lambda: self.run.publish(weights), numbered=False)  # fmt: skip
        if moved is not None:
            assert moved[0] == moved[1]
            self.weights.append(weights)

    @precondition(lambda self: self._alive())
    @move(lost=st.booleans(), steps=st.integers(0, 3), ghost=st.booleans())
    def save(self, steps: int = MOST_STEPS, lost: bool = False, ghost: bool = False) -> None:
        """A checkpoint; the learner dies if it has more to tell the queue than so many steps of a commit."""
        me = self._one(ghost)
        name = _name(me.lineage, me.version)
        if not me.trained or name in self.store:
            return
        one = Checkpoint(name, me.version, me.saved, tuple(me.trained))
        self.store[name] = one
        me.saved, me.trained = name, []
        for _, standing, ids in _steps(one)[:steps]:
            self._commit(me, standing, ids, lost)
        me.ended |= steps < len(_steps(one))

    @move()
    def restart(self) -> None:
        """A new learner, from the newest checkpoint that is whole; older ones wake up some time, or never."""
        newest = max((one for name, one in self.store.items() if name not in self.damaged), default=None, key=_by_name)
        queue = self._connect()
        begin = Version(int(newest.name.split("/")[0]), newest.version) if newest else BASE
        floor = max(
            *(int(name.split("/")[0]) for name in self.store), *(weights.lineage for weights in self.weights), 0
        )
        resumed = queue.resume(begin, floor, rules=self.run.rules)
        assert resumed.lineage == self.run.resume(begin, floor)
        settled = f" {resumed.settled}" if resumed.settled else ""
        assert (resumed.committed or "") + settled == self.run.committed
        me = Learner(queue, resumed.lineage, begin.number, self._mark(resumed.lineage, newest))
        self.learners.append(me)
        self._follow(me)
        before = set(self.run.retry)
        me.hand = [group.task for group in queue.pending(me.lineage)]
        assert me.hand == self.run.pending(me.lineage)
        self._in_any_order(set(self.run.retry) - before)
        if self.run.published is None:
            weights = Version(me.lineage, begin.number)
            assert queue.publish(me.lineage, Published(weights, "m", "d")) == self.run.publish(weights)
            self.weights.append(weights)

    @move(mixture=st.sampled_from(MIXTURES))
    def reweigh(self, mixture: str) -> None:
        """A new learner, with other weights, or with another order of the backlog."""
        self.run.rules = replace(self.run.rules, mixture=mixture)
        self.restart()

    def _mark(self, lineage: int, begin: Checkpoint | None) -> str:
        """The lineage's first checkpoint, which holds what `begin` holds; without it, the base model."""
        begun_at = begin or Checkpoint("", 0, "", ())
        name = _name(lineage, begun_at.version)
        self.store[name] = Checkpoint(name, begun_at.version, begun_at.name, ())
        return name

    def _follow(self, me: Learner) -> None:
        here, there = self._path(self.run.committed), self._path(me.saved)
        common = [step for step in here if step in there]
        for before, standing, ids in reversed(here[len(common) :]):
            undone = me.queue.uncommit(me.lineage, standing, before, ids)
            assert undone == self.run.uncommit(me.lineage, me.turn + 1, standing, before, ids)
            me.turn += 1
        ahead = there[len(common) :]
        if not self.run.committed:
            held = [task for _, _, ids in ahead for task in ids]
            restored = me.queue.restore(me.lineage, me.saved, held)
            assert restored == self.run.restore(me.lineage, me.turn + 1, me.saved, held)
            me.turn += 1
            ahead = [] if restored else ahead
        for _, standing, ids in ahead:
            self._commit(me, standing, ids)

    def _path(self, standing: str) -> list[Step]:
        """The steps of all commits that lead there, oldest first."""
        name, _, settled = standing.partition(" ")
        path = [step for one in reversed(self._chain(name)) for step in _steps(one)]
        return path[: [after for _, after, _ in path].index(standing) + 1] if settled else path

    def _chain(self, name: str) -> list[Checkpoint]:
        """Newest first."""
        found = []
        while name:
            found.append(self.store[name])
            name = self.store[name].parent
        return found

    @precondition(lambda self: self._alive())
    @move(size=st.integers(1, 4), steps=st.integers(0, 4))
    def round(self, size: int, steps: int) -> None:
        """Makes one round of moves without a fault, so that there is something to lose."""
        self.lease("w1", size)
        for _ in range(min(size, len(self.work))):
            self.complete(len(self.work) - 1)
        for step in (partial(self.drain, size), self.update, self.publish, self.save)[:steps]:
            if self._alive():
                step()

    @precondition(lambda self: self._alive())
    @move(old=st.integers(0, 2), lost=st.booleans(), ghost=st.booleans())
    def evaluate(self, old: int = 0, lost: bool = False, ghost: bool = False) -> None:
        """Asks the held-out set of the newest weights, or of older ones, unless another round is under way."""
        me, version = self._one(ghost), self.weights[-1 - min(old, len(self.weights) - 1)]
        moved = self._turn(me, lost, lambda: me.queue.evaluate(me.lineage, version, "h"),
                           lambda: self.run.evaluate(me.lineage, version, "h"), numbered=False)  # fmt: skip
        if moved is not None:
            assert moved[0] == moved[1]

    @precondition(lambda self: self._alive() and self.run.round)
    @move(lost=st.booleans(), ghost=st.booleans())
    def conclude(self, lost: bool = False, ghost: bool = False) -> None:
        """Reads what there is of the round, answers and failures, and ends it."""
        me, (number, version, _) = self._one(ghost), self.run.round  # type: ignore[misc]
        scored = self.queue.scored(me.lineage)
        assert [one.task for one in scored] == list(self.run.scored)
        for one in scored:
            assert (one.group is None) == (self.run.scored[one.task].worker == "")
            assert one.group is None or (one.group.oldest, one.group.newest, one.group.lineage) == (
                version.number, version.number, version.lineage,
            )  # fmt: skip
        self._turn(me, lost, lambda: me.queue.conclude(me.lineage, number),
                   lambda: self.run.conclude(me.lineage, number), numbered=False)  # fmt: skip

    # What goes wrong --------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.store)
    @move()
    def damage(self) -> None:
        """The newest checkpoint, unless only the base model is before it: to begin again is for a person to decide."""
        whole = sorted(set(self.store) - self.damaged)
        if all(self.store[name].version for name in whole[-2:]):
            self.damaged.add(whole[-1])
            self.restart()

    @precondition(lambda self: self.store)
    @move(which=pick)
    def rewind(self, which: int) -> None:
        whole = sorted(set(self.store) - self.damaged)
        target = self.store[whole[which % len(whole)]]
        self._mark(max(self.run.lineage, *(int(name.split("/")[0]) for name in whole)) + 1, target)
        self.restart()

    @move()
    def remember(self) -> None:
        """Remembers what Redis holds now as the content of a replica or a backup."""
        self.before = self._dump(), copy.deepcopy(self.run)

    @precondition(lambda self: self.before is not None)
    @move()
    def set_back(self) -> None:
        dump, run = self.before  # type: ignore[misc]
        self.run = copy.deepcopy(run)
        self._restore(dump)

    @precondition(lambda self: self._alive() and self.learners[-1].hand)
    @move(which=pick, lost=st.booleans(), ghost=st.booleans())
    def return_unfit(self, which: int, lost: bool = False, ghost: bool = False) -> None:
        """A group that the learner has drained, and that limits of a later configuration exclude."""
        me, hand = self._one(ghost), self.learners[-1].hand
        task = hand[which % len(hand)]
        entry = self.queue.client.hget(self.queue.keys.open, task).split()[1]  # type: ignore[union-attr]
        moved = self._turn(me, lost, lambda: me.queue.return_unfit(me.lineage, task.encode(), entry),
                           lambda: self.run.return_unfit(me.lineage, task), numbered=False)  # fmt: skip
        if moved is not None:
            assert moved[0] == moved[1]
            hand.remove(task)

    @precondition(lambda self: self._alive())
    @move(worker=st.sampled_from(WORKERS), lost=st.booleans(), ghost=st.booleans())
    def suspend(self, worker: str, lost: bool = False, ghost: bool = False) -> None:
        """The learner does, for what all tasks suffered that are dead or have failed."""
        me, failed = self._one(ghost), sorted({*self.run.dead, *self.run.failures, *self.run.unanswered})
        moved = self._turn(me, lost, lambda: me.queue.suspend(me.lineage, worker, "why", failed),
                           lambda: self.run.suspend(me.lineage, worker, failed), numbered=False)  # fmt: skip
        if moved is not None:
            assert moved[0] == moved[1]

    @precondition(lambda self: self.run.suspended)
    @move(which=pick, lost=st.booleans())
    def reinstate(self, which: int, lost: bool = False) -> None:
        known = sorted(self.run.suspended)
        worker = known[which % len(known)]
        self._both(lost, lambda: self.queue.reinstate([worker]), lambda: self.run.reinstate(worker))

    @move(which=pick, lost=st.booleans())
    def bury(self, which: int, lost: bool = False) -> None:
        """An operator does; what a learner has in hand stays there."""
        opened = sorted(expected(self.run).places)
        if opened:
            task = opened[which % len(opened)]
            self._both(lost, lambda: self.queue.bury(task, "why"), lambda: self.run.bury(task))

    @precondition(lambda self: self.run.dead or self.run.failures or self.run.unanswered)
    @move(lost=st.booleans())
    def revive(self, lost: bool = False) -> None:
        """A person does, of all that is dead or has failed before."""
        failed = sorted({*self.run.dead, *self.run.failures, *self.run.unanswered})
        self._both(lost, lambda: self.queue.revive(failed), lambda: self.run.revive(failed))

    # What must hold ---------------------------------------------------------------------------------------------------

    def check(self) -> None:
        unlike = look(self.queue).unlike(expected(self.run))
        assert not unlike, unlike
        audit = self.queue.audit()
        assert audit.ok, audit

    def teardown(self) -> None:
        """Everything is submitted, revived, generated and trained; then the checkpoints are counted."""
        if not hasattr(self, "learners"):
            return
        self.depth = 1
        for name in "ab":
            for chunk in range(len(CHUNKS)):
                self.submit(name, chunk)
        self.restart()
        me = self.learners[-1]
        for _ in range(100):
            if self.run.dead:
                self.revive()
            for task in list(self.run.leases):
                self._run_out(task)
            self.reclaim(0)
            if self.run.round:
                self.conclude()
            self.lease("w1", 100)
            while self.work:
                self.complete(0)
            self.drain(self.run.rules.batch)
            if not me.hand and self.run.trained == self.run.submitted:
                break
            for step in (self.update, self.publish, self.save):
                step()
        self.check()
        trained = [task for one in self._chain(me.saved) for task in one.trained]
        assert sorted(trained) == sorted(set(trained)), trained
        assert len(trained) == self.run.submitted == self.run.trained
        assert not [task for task in trained if task.startswith("h/")]
        assert self.run.asked == sum(self.run.concluded)

    # ------------------------------------------------------------------------------------------------------------------

    def _connect(self) -> Clients:
        return Clients.of(RepeatingCaller(self.server.client(), self.name, 10.0))

    def _alive(self) -> bool:
        return not self.learners[-1].ended

    def _one(self, ghost: bool) -> Learner:
        """The learner; or the one before, if it still hangs somewhere."""
        if ghost and len(self.learners) > 1 and not self.learners[-2].ended:
            return self.learners[-2]
        return self.learners[-1]

    def _commit(self, me: Learner, standing: str, ids: Sequence[str], lost: bool = False) -> None:
        moved = self._turn(
            me, lost,
            lambda: me.queue.commit(me.lineage, standing, ids),
            lambda: self.run.commit(me.lineage, me.turn + 1, standing, ids),
        )  # fmt: skip
        assert moved is None or moved[0] == moved[1]

    def _turn(
        self, me: Learner, lost: bool, real: Callable[[], Any], mine: Callable[[], Any], numbered: bool = True
    ) -> tuple[Any, Any] | None:
        """Both answers to a move of a learner, who ends if it is refused."""
        try:
            predicted = self._model(lost, mine)
        except Refused as refusal:
            error = {FENCED: FencedError, SET_BACK: SetBackError}[str(refusal)]
            try:
                self._real(lost, real, me.queue)
            except error:
                me.ended = True
                return None
            raise AssertionError(f"it should have been refused: {refusal}") from None
        answered = self._real(lost, real, me.queue)
        me.turn += numbered
        return answered, predicted

    def _both(self, lost: bool, real: Callable[[], Any], mine: Callable[[], Any]) -> None:
        answered = self._real(lost, real)
        assert answered == self._model(lost, mine)

    def _real(self, lost: bool, move: Callable[[], Any], queue: Clients | None = None) -> Any:
        caller: Any = (queue or self.queue).caller
        caller.lost = lost
        try:
            return move()
        finally:
            caller.lost = False

    def _model(self, lost: bool, move: Callable[[], Any]) -> Any:
        for _ in range(lost):
            move()
        return move()

    def _run_out(self, task: str) -> None:
        run_out(self.queue, task)
        self.run.run_out(task)

    def _in_any_order(self, tasks: set[str]) -> None:
        """These went back in an order that is not promised: the one that Redis chose is as good as any."""
        if tasks:
            order = [task.id for task in look(self.queue).retry if task.id in tasks]
            self.run.retry.update({task: self.run.retry.pop(task) for task in order})

    def _dump(self) -> dict[bytes, bytes]:
        client = self.queue.client
        names = list(client.scan_iter(self.queue.keys.prefix + "*"))
        return {name: client.dump(name) for name in names}

    def _restore(self, dump: dict[bytes, bytes]) -> None:
        client = self.queue.client
        pipe = client.pipeline(transaction=True)
        pipe.delete(*client.scan_iter(self.queue.keys.prefix + "*"))
        for name, value in dump.items():
            pipe.restore(name, 0, value)
        pipe.execute()


def _name(lineage: int, version: int) -> str:
    return f"{lineage:04d}/{version:08d}"


def _steps(one: Checkpoint) -> list[Step]:
    ends = range(STEP, max(len(one.trained), 1) + STEP, STEP)
    standings = [one.name if end >= len(one.trained) else f"{one.name} {end}" for end in ends]
    ids = [one.trained[end - STEP : end] for end in ends]
    return list(zip([one.parent, *standings], standings, ids, strict=False))


def _by_name(one: Checkpoint) -> str:
    return one.name
