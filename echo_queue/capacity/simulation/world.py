"""A simulated run: one learner, pools of machines, and their queue, on one clock.

- Machines lease, wait for weights, generate, complete, hand back and die as rollout workers do in the mode `in-flight`.
- New weights reach all machines of a pool `fetch_s` after their publication; until then the machines go on with older
  ones. A pool fetches one version at a time, and then the newest.
- A machine that is lost takes what it has not stored with it, and another one takes its place after `boot_s`.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from echo_queue.capacity.fleet_file import Churn
from echo_queue.capacity.simulation.clock import Clock
from echo_queue.capacity.simulation.learner import LearnerTimes, SimulatedLearner
from echo_queue.capacity.simulation.machine import Fetching, Rollout, SimulatedMachine
from echo_queue.capacity.simulation.moves import Leased, SimulatedQueue
from echo_queue.capacity.simulation.tally import Cause, Tally
from echo_queue.errors import EchoQueueError, Problem
from echo_queue.queue import RunRules, staleness_rules
from echo_queue.queue.rhythm import sweep_pause_s

STALL_UPDATES = 1_000
"""A learner that waits for longer than so many updates take will wait for ever."""
SAME_S = 1e-9
"""Times that are no farther apart are the same, because they are rounded."""


@dataclass(frozen=True)
class Loss:
    """The loss of `machines` machines of a pool, at a time; which of them is drawn."""

    at_s: float
    pool: int
    machines: int


@dataclass(frozen=True)
class SimulatedPool:
    """Machines of one kind. `steps_s`: seconds of a unit of work on a machine with 1, 2, … groups, as many as it holds.

    `fetch_s`: seconds from a publication until they serve its weights. `boot_s`: from the loss of one until another
    serves. `progress_s`: seconds between two times that they store partial rollouts; 0: never. `losses_per_hour`: of
    one machine, one by one. `usd_per_hour`: of one machine.
    """

    name: str
    machines: int
    steps_s: Sequence[float]
    fetch_s: float = 0.0
    boot_s: float = 0.0
    progress_s: float = 0.0
    losses_per_hour: float = 0.0
    usd_per_hour: float = 0.0
    churn: Churn = field(default_factory=Churn)


@dataclass(frozen=True)
class Events:
    """The choices of chance. `work`: a group's work by the number of its prompt. `pick`: one of so many machines.

    `slowness`: how many times as long a machine takes, by the numbers of its pool and of itself, from 1 on.
    """

    work: Callable[[int], float]
    losses: Iterator[Loss] = field(default_factory=lambda: iter(()))
    pick: Callable[[int], int] = lambda machines: 0
    slowness: Callable[[int, int], float] = lambda pool, machine: 1.0


class World:
    """A run whose learner begins at version `begin`. `most`: the number of groups that a machine may hold now."""

    def __init__(
        self,
        queue: SimulatedQueue,
        rules: RunRules,
        times: LearnerTimes,
        pools: Sequence[SimulatedPool],
        events: Events,
        *,
        begin: int = 0,
        most: Callable[[SimulatedMachine], int] = lambda machine: len(machine.steps_s),
    ) -> None:
        self.clock = Clock()
        self._queue, self._rules, self._pools, self._events, self._most = queue, rules, pools, events, most
        self.learner = SimulatedLearner(self.clock, queue, rules, times, begin=begin, on_publish=self._tell_published)
        self._weights = [Fetching(pool.fetch_s, begin) for pool in pools]
        self._machines: dict[str, SimulatedMachine] = {}
        self._living: list[list[SimulatedMachine]] = [[] for _ in pools]
        self._hungry = deque[SimulatedMachine]()
        self._pending = 0
        """The number of tasks that wait for weights."""
        self._dry = False
        """True while nothing waits to be leased."""
        self._started = [0] * len(pools)
        self._train_s = times.train_s
        self._pause_s = sweep_pause_s(rules.lease_ms / 1000)
        queue.publish(begin)
        for number, pool in enumerate(pools):
            self._begin_pool(number, pool)
        self._await_loss()
        self.clock.at(0.0, self.learner.gather)
        self.clock.after(self._pause_s, self._keep_house)

    @property
    def tally(self) -> Tally:
        return self.learner.tally

    def run(self, version: int) -> None:
        """Runs until the learner has made `version`. Raises `EchoQueueError` if it waits for a batch for ever."""
        learner, clock = self.learner, self.clock
        while learner.version < version:
            before_s, cause = clock.now_s, self._cause() if learner.waiting else None
            action = clock.next()
            if clock.now_s - learner.trained_s > STALL_UPDATES * self._train_s:
                raise EchoQueueError(self._stall())
            if cause is not None:
                learner.tally.waits_s[cause] += clock.now_s - before_s
            self._queue.now_s = clock.now_s
            action()
            if learner.moved:
                learner.moved, self._dry = False, False
            if not self._dry:
                self._feed()

    def _stall(self) -> Problem:
        have, counts = self._rules.batch - self.learner.lacking, self._queue.counts()
        what = f"the learner has {have} of {self._rules.batch} groups after the time of {STALL_UPDATES:,} updates"
        fix = "let machines store their progress (run.progress_s), lose fewer of them, or generate faster"
        return Problem("simulation", f"{what}; {counts.dead:,} tasks died and {counts.expired:,} leases ran out", fix)

    def begin_account(self) -> None:
        """Begins a new account, at the end of the warm-up."""
        self.learner.tally = Tally(began_s=self.clock.now_s)
        for machine in self._machines.values():
            machine.began_s = self.clock.now_s

    def end_account(self) -> Tally:
        """Returns the account, with what living machines have had time for."""
        for machine in self._machines.values():
            machine.pass_time(self.clock.now_s)
            self._count_time(machine)
            self.tally.generated += sum(machine.done(one) - one.leased.done for one in machine.rollouts.values())
        return self.tally

    # Machines come and go ---------------------------------------------------------------------------------------------

    def _begin_pool(self, number: int, pool: SimulatedPool) -> None:
        for _ in range(pool.machines):
            self.clock.at(pool.churn.begins_s, partial(self._add, number, pool.churn.begins_s))
        if pool.churn.ends_s is not None:
            self.clock.at(pool.churn.ends_s, partial(self._end_pool, number))

    def _add(self, number: int, paid_from_s: float) -> None:
        pool, self._started[number] = self._pools[number], self._started[number] + 1
        name = f"{pool.name}-{self._started[number]}"
        slowness = self._events.slowness(number, self._started[number])
        steps_s = [slowness * step_s for step_s in pool.steps_s]
        machine = SimulatedMachine(name, number, steps_s, self._weights[number], paid_from_s)
        machine.pass_time(self.clock.now_s)
        self._machines[name] = machine
        self._living[number].append(machine)
        self._offer_room(machine)

    def _end_pool(self, number: int) -> None:
        for machine in list(self._living[number]):
            self._remove(machine, hand_over=True)

    def _await_loss(self) -> None:
        loss = next(self._events.losses, None)
        if loss is not None:
            self.clock.at(max(loss.at_s, self.clock.now_s), partial(self._lose, loss))

    def _lose(self, loss: Loss) -> None:
        pool, living = self._pools[loss.pool], self._living[loss.pool]
        for _ in range(min(loss.machines, len(living))):
            self._remove(living[self._events.pick(len(living))], hand_over=pool.churn.notice)
            self.tally.machines_lost += 1
            self.clock.after(pool.boot_s, partial(self._add, loss.pool, self.clock.now_s))
        self._await_loss()

    def _remove(self, machine: SimulatedMachine, *, hand_over: bool) -> None:
        """Takes a machine away, with what it has not stored, or after it has stored and handed back all it has."""
        machine.pass_time(self.clock.now_s)
        self._count_time(machine)
        for task, rollout in machine.rollouts.items():
            done = machine.done(rollout)
            stored = done if hand_over else self._stored(machine, rollout, done)
            if stored > rollout.stored:
                self._queue.keep(machine.name, task, rollout.oldest, machine.weights.serving, stored)
            self.tally.generated += done - rollout.leased.done
            self.tally.lost += done - max(stored, rollout.stored)
        if hand_over:
            pending = machine.pending[1] if machine.pending else []
            self._queue.release(machine.name, [*machine.rollouts, *(leased.task for leased in pending)])
        self._keep_pending(machine, [])
        machine.up = False
        machine.rollouts.clear()
        self._queue.lose(machine.name)
        del self._machines[machine.name]
        self._living[machine.pool].remove(machine)

    def _stored(self, machine: SimulatedMachine, rollout: Rollout, done: float) -> float:
        """Returns how much of a group was done when partial rollouts were last stored; 0 if it had just begun."""
        every_s = self._pools[machine.pool].progress_s
        if every_s == 0:
            return 0.0
        since_s = self.clock.now_s % every_s
        passed = since_s / machine.steps_s[len(machine.rollouts) - 1]
        return max(0.0, done - passed) if done - rollout.leased.done > passed else 0.0

    def _count_time(self, machine: SimulatedMachine) -> None:
        seconds = self.clock.now_s - machine.began_s
        self.tally.paid_s[machine.pool] += seconds
        self.tally.capacity += seconds * len(machine.steps_s) / machine.steps_s[-1]

    # Tasks ------------------------------------------------------------------------------------------------------------

    def _feed(self) -> None:
        """Lets machines lease in turn, those first that have waited longest, until nothing waits to be leased."""
        while self._hungry:
            machine = self._hungry.popleft()
            machine.hungry = False
            room = machine.room(self._most(machine))
            if room == 0:
                continue
            leased = self._queue.lease(machine.name, machine.weights.serving, room)
            if not leased:
                machine.hungry = True
                self._hungry.appendleft(machine)
                self._dry = True
                return
            self._take(machine, leased)
            self._offer_room(machine)

    def _offer_room(self, machine: SimulatedMachine) -> None:
        if not machine.hungry and machine.room(self._most(machine)):
            machine.hungry = True
            self._hungry.append(machine)

    def _take(self, machine: SimulatedMachine, leased: Sequence[Leased]) -> None:
        """Begins the tasks of a lease, or lets them wait for the weights that one of them needs."""
        needs = max(task.needs for task in leased)
        if needs <= machine.weights.serving:
            self._begin(machine, leased)
        else:
            machine.pending = needs, list(leased)
            machine.weights.waiting[machine] = None
            self._pending += len(leased)

    def _keep_pending(self, machine: SimulatedMachine, tasks: list[Leased]) -> None:
        """Lets a machine wait with these of its tasks alone."""
        if machine.pending:
            self._pending += len(tasks) - len(machine.pending[1])
            machine.pending = (machine.pending[0], tasks) if tasks else None

    def _begin(self, machine: SimulatedMachine, leased: Sequence[Leased]) -> None:
        machine.pass_time(self.clock.now_s)
        serving = machine.weights.serving
        for task in leased:
            if task.task in machine.rollouts:  # it may have been lost and leased again
                self._give_up(machine, task.task)
            oldest = serving if task.oldest is None else task.oldest
            if self._queue.begin(machine.name, task.task, oldest):
                machine.begin(task, self._events.work(task.prompt), oldest)
        self._appoint(machine)

    def _appoint(self, machine: SimulatedMachine) -> None:
        """Sees to it that the machine is visited when its next group ends."""
        ends_s = machine.next_end_s
        if abs(ends_s - machine.appointment) > SAME_S:
            machine.appointment = ends_s
            if machine.rollouts:
                self.clock.at(ends_s, partial(self._visit, machine, ends_s))

    def _visit(self, machine: SimulatedMachine, appointment: float) -> None:
        if not machine.up or machine.appointment != appointment:
            return
        machine.pass_time(self.clock.now_s)
        machine.appointment = -1.0
        for rollout in machine.ended():
            self._complete(machine, rollout)
        self._appoint(machine)
        self._offer_room(machine)
        if self.learner.waiting:
            self.learner.gather()

    def _complete(self, machine: SimulatedMachine, rollout: Rollout) -> None:
        self.tally.generated += rollout.work - rollout.leased.done
        task = rollout.leased.task
        if self._queue.complete(machine.name, task, rollout.oldest):
            self.learner.completed[task] = rollout.oldest, rollout.work
        else:
            self.tally.stale += rollout.work

    def _give_up(self, machine: SimulatedMachine, task: str) -> None:
        """Drops what a machine has of a task that it holds no more. Call it once time has passed."""
        rollout = machine.rollouts.get(task)
        if rollout is not None:
            done = machine.done(rollout)
            self.tally.generated += done - rollout.leased.done
            self.tally.stale += done
            machine.drop(task)

    def _keep_house(self) -> None:
        """Renews leases, drops what was taken from machines, and sweeps."""
        for name, task in sorted(self._queue.renew()):
            machine = self._machines.get(name)
            if machine is None:
                continue
            machine.pass_time(self.clock.now_s)
            self._give_up(machine, task)
            if machine.pending:
                self._keep_pending(machine, [leased for leased in machine.pending[1] if leased.task != task])
            self._appoint(machine)
            self._offer_room(machine)
        self._queue.sweep()
        self.learner.moved = True
        if self.learner.waiting:
            self.learner.gather()
        self.clock.after(self._pause_s, self._keep_house)

    # Weights ----------------------------------------------------------------------------------------------------------

    def _tell_published(self, version: int) -> None:
        for weights in self._weights:
            if weights.coming is None:
                self._fetch(weights)

    def _fetch(self, weights: Fetching) -> None:
        weights.coming = self.learner.published
        self.clock.after(weights.fetch_s, partial(self._arrive, weights))

    def _arrive(self, weights: Fetching) -> None:
        """The machines of a pool serve a version: what waited for it begins."""
        assert weights.coming is not None, "a version arrives that was not fetched"
        weights.serving, weights.coming = weights.coming, None
        if weights.serving < self.learner.published:
            self._fetch(weights)
        for machine in list(weights.waiting):
            if machine.pending and machine.pending[0] > weights.serving:
                continue
            del weights.waiting[machine]
            if machine.pending:
                leased = machine.pending[1]
                self._keep_pending(machine, [])
                self._begin(machine, leased)
                self._offer_room(machine)

    # What the learner waits for ---------------------------------------------------------------------------------------

    def _cause(self) -> Cause:
        learner = self.learner
        if learner.seats >= learner.lacking:
            return Cause.late
        if self._pending >= learner.lacking:
            return Cause.weights
        if not self._hungry:
            return Cause.machines
        rules, untrained = self._rules, self._queue.untrained
        oldest = staleness_rules.min_pv(learner.version, untrained, rules.batch, rules.s)
        if not staleness_rules.within_bound(oldest, learner.published):
            return Cause.weights if oldest <= learner.version else Cause.bound
        return Cause.pace
