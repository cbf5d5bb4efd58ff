"""The simulated learner: it gathers a batch, trains it for a while, advances and publishes, as `Leader` does.

- A version is published every κ updates, if no other one is being published. One that was left out is published once
  the learner waits for groups, or after the next update.
- The window follows the rule by which the real learner sets it (`staleness_rules.pace`).
"""

from collections.abc import Callable
from dataclasses import dataclass

from echo_queue.capacity.simulation.clock import Clock
from echo_queue.capacity.simulation.memory_queue import FIRST_WINDOW
from echo_queue.capacity.simulation.moves import SimulatedQueue
from echo_queue.capacity.simulation.tally import Tally
from echo_queue.queue import RunRules, staleness_rules


@dataclass(frozen=True)
class LearnerTimes:
    """`train_s`: seconds of an update. `publish_s`: seconds from its end until the pointer moves to its version."""

    train_s: float
    publish_s: float
    kappa: int


class SimulatedLearner:
    """The learner of a queue whose version `begin` is published. `on_publish` is called when the pointer has moved."""

    def __init__(
        self,
        clock: Clock,
        queue: SimulatedQueue,
        rules: RunRules,
        times: LearnerTimes,
        *,
        begin: int,
        on_publish: Callable[[int], None],
    ) -> None:
        self._clock, self._queue, self._rules, self._times = clock, queue, rules, times
        self._on_publish = on_publish
        self.tally = Tally()
        self.version, self.published = begin, begin
        self.window = FIRST_WINDOW
        self.waiting = True
        self.moved = True
        """True once a move may have made tasks: machines that wait look again. Whoever tells them resets it."""
        self.lacking = rules.batch
        self.trained_s = 0.0
        """When the last update ended."""
        self.seats = 0
        """Seats that were kept for late groups at the last drain."""
        self.completed: dict[str, tuple[int, float]] = {}
        """The oldest version, and the work, of groups that the learner has not drained."""
        self._handed_over, self._publishing = begin, False
        self._hand: list[str] = []
        self._lags: list[int] = []
        self._short_since: float | None = None
        self._starved_s, self._ready = 0.0, 0

    def gather(self) -> None:
        """Drains what there is, and begins an update if that makes a batch. Call it while the learner waits."""
        drained = self._queue.drain(self._rules.batch - len(self._hand))
        self.moved = True
        if drained.late:
            self._forget_late()
        for task in drained.tasks:
            oldest, _ = self.completed.pop(task)
            self._lags.append(self.version - oldest)
        self._hand += drained.tasks
        self.lacking, self.seats = self._rules.batch - len(self._hand), drained.seats
        now_s = self._clock.now_s
        if self.lacking:
            self._short_since = now_s if self._short_since is None else self._short_since
            self._publish_if_due()
            return
        self._starved_s = now_s - self._short_since if self._short_since is not None else 0.0
        self._short_since, self._ready = None, drained.ready
        self.waiting = False
        self._clock.after(self._times.train_s, self._update)

    def _update(self) -> None:
        """Ends an update: the queue learns of the version before it is published."""
        self._count()
        self.version, self.trained_s = self.version + 1, self._clock.now_s
        train_s, size = self._times.train_s, self._rules.batch
        widest = self._rules.s + 1
        self.window = staleness_rules.pace(self.window, self._starved_s, train_s, self._ready, size, widest=widest)
        self._queue.advance(self.version, self._hand, self.window)
        self._hand, self.waiting = [], True
        self._publish_if_due()
        self.gather()

    def _count(self) -> None:
        tally = self.tally
        tally.updates, tally.groups = tally.updates + 1, tally.groups + len(self._hand)
        tally.train_s += self._times.train_s
        tally.lags += sum(self._lags)
        tally.worst_lag = max(tally.worst_lag, *self._lags)
        self._lags = []

    def _publish_if_due(self) -> None:
        if self._publishing or self.version - self._handed_over < self._times.kappa:
            return
        self._handed_over, self._publishing = self.version, True
        self._clock.after(self._times.publish_s, self._published)

    def _published(self) -> None:
        self._publishing, self.published = False, self._handed_over
        self._queue.publish(self.published)
        self.moved = True
        if self.waiting:
            self._publish_if_due()
        self._on_publish(self.published)

    def _forget_late(self) -> None:
        """Counts the work of groups that the drain has sent back."""
        s = self._rules.s
        late = [task for task, one in self.completed.items() if not staleness_rules.admissible(self.version, one[0], s)]
        for task in late:
            self.tally.stale += self.completed.pop(task)[1]
