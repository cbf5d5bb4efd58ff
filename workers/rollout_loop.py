"""The loop of a rollout worker's main thread: tasks join the engine while there is room, and leave as finished groups.

- A task is generated with weights of version `min_pv` or newer that no restart of the learner has abandoned. The spans
  of a sample name the version of each token.
- New weights are taken at the time that `rollout.mode` sets: between two steps, or once all running samples have ended.
- A task that fails loses one attempt, with the reason, and never gets a reward for it. A task that is lost or cancelled
  is dropped. When the worker leaves, it stores the partial rollouts of the other tasks and hands these back, and other
  workers continue them.
- A worker that is killed leaves leases that expire, and the partial rollouts that were stored last.
"""

import logging
import time

from echo_queue.config import Config
from echo_queue.errors import EchoQueueError
from echo_queue.launch.liveness import StepClock
from echo_queue.queue.counts import counted
from echo_queue.queue.rhythm import room_for
from echo_queue.records import BASE
from workers.assignment import Assignment
from workers.completer import GroupCompleter
from workers.engines import Engine
from workers.environments.scorer import Scorer
from workers.held_leases import HeldLeases
from workers.lease_keeper import LeaseKeeper
from workers.leaser import LeasedTasks, TaskLeaser
from workers.shutdown import Shutdown
from workers.weights import WeightSync

log = logging.getLogger(__name__)

POLL_S = 0.05
"""The pause between checks for new work while nothing is generated."""
FINISH_SHARE = 0.4
"""The share of the time for leaving in which groups may still be scored."""


class RolloutLoop:
    """The loop, for the main thread. `run` returns once the run is finished, or soon after `shutdown` is set."""

    def __init__(
        self,
        config: Config,
        *,
        engine: Engine,
        scorer: Scorer,
        held: HeldLeases,
        leaser: TaskLeaser,
        completer: GroupCompleter,
        lease_keeper: LeaseKeeper,
        weights: WeightSync,
        shutdown: Shutdown,
        steps: StepClock,
    ) -> None:
        self._config = config
        self._engine = engine
        self._scorer = scorer
        self._held = held
        self._leaser = leaser
        self._completer = completer
        self._lease_keeper = lease_keeper
        self._weights = weights
        self._shutdown = shutdown
        self._steps = steps
        self._in_flight = config.rollout.mode == "in-flight"
        self._most = most_groups(config)
        self._generating: dict[str, Assignment] = {}
        self._scoring: dict[str, Assignment] = {}
        self._pending: list[LeasedTasks] = []
        self._noted_s = time.monotonic()

    def run(self) -> None:
        """Runs until the worker must leave. Raises the error of any thread of the worker; the tasks are handed back."""
        self._weights.start(on_swap=self._lease_keeper.serve, on_quarantine=self._quarantine)
        self._scorer.wait_ready()
        self._lease_keeper.state = "fetching"
        self._weights.catch_up()
        self._leaser.start()
        self._completer.start()
        try:
            while not self._shutdown.is_set() and not self._leaser.finished:
                self._turn()
        except EchoQueueError:
            self._leaser.close()
            self._hand_back()
            self._lease_keeper.close()
            self._lease_keeper.leave_after_error()
            raise
        if self._leaser.finished:
            log.info("the run is finished")
        self._leave()

    def _turn(self) -> None:
        """Takes new weights and new tasks if there are any, then one step of the engine; waits if nothing runs."""
        for part in (self._lease_keeper, self._leaser, self._completer, self._weights):
            part.check()
        self._take_weights()
        self._drop_lost()
        self._pending += self._leaser.exchange(self._room())
        self._begin()
        self._continue_answered()
        if time.monotonic() - self._noted_s > self._config.rollout.progress_s:
            self._note(grown_s=self._config.rollout.progress_s)
        if self._engine.running:
            self._lease_keeper.state = "generating"
            self._step()
        else:
            self._lease_keeper.state = "scoring" if self._completer.waiting else "idle"
            if self._shutdown.resting and not self._held:
                self._shutdown.leave("nothing is left to do, and nothing more is leased", departure="rest")
            self._leaser.wake.wait(POLL_S)
            self._leaser.wake.clear()

    def _room(self) -> int:
        """Returns the number of further groups to lease; 0 if the batch is nearly full or other work comes first."""
        calls_of_group = self._config.rollout.group_size if self._scorer.interactive else 1
        busy = self._pending or self._completer.behind > self._most * calls_of_group
        drains = self._weights.waiting and not self._in_flight
        if busy or drains or self._shutdown.resting:
            return 0
        return room_for(self._most, len(self._generating))

    def _take_weights(self) -> None:
        """Loads newer weights if the mode allows it now; waits for those that a leased task needs if nothing runs."""
        before = self._engine.version
        if self._in_flight or not self._generating:
            self._weights.take()
        needed = self._pending[0].needed if self._pending else None
        if needed is not None and self._engine.version < needed and not self._generating:
            self._lease_keeper.state = "fetching"
            self._weights.refresh(needed)
        if self._generating and self._engine.version.lineage != before.lineage:
            self._begin_from_scratch("the learner's first weights" if before == BASE else "weights of another lineage")

    def _begin_from_scratch(self, weights: str) -> None:
        """Restarts all groups: only the queue knows whether the weights of their tokens are ancestors of today's."""
        log.info("%s anew, with %s", counted(len(self._generating), "group", "begins", "begin"), weights)
        self._engine.abort(list(self._generating))
        for task, assignment in self._generating.items():
            self._generating[task] = assignment.from_scratch()
            self._add(self._generating[task])

    def _begin(self) -> None:
        """Begins the pending tasks that the weights served now may generate."""
        while self._pending:
            needed = self._pending[0].needed
            if needed is not None and self._engine.version < needed:
                return
            for assignment in self._pending.pop(0).assignments:
                if self._held.holds(assignment.task):
                    # It may have been lost and leased again.
                    self._engine.abort([assignment.id])
                    self._scoring.pop(assignment.id, None)
                    self._generating[assignment.id] = assignment
                    self._add(assignment)

    def _continue_answered(self) -> None:
        """Continues the samples to which the environment has answered."""
        while not self._completer.returned.empty():
            ended = self._completer.returned.get_nowait()
            if self._generating.get(ended.assignment.id) is ended.assignment:
                self._engine.add([ended.assignment.request(ended.number)])

    def _add(self, assignment: Assignment) -> None:
        """Adds the samples that have not ended to the engine, and submits those that have."""
        version = self._engine.version
        assignment.begun_s = time.monotonic()
        self._held.set_version(assignment.task, assignment.oldest(version.number))
        if requests := assignment.requests():
            assignment.lineage = version.lineage
            self._engine.add(requests)
        ended = [number for number, sample in enumerate(assignment.samples) if sample.finish]
        for number in ended:  # the list is complete: from here on the environment may change samples
            self._end(assignment, number)

    def _step(self) -> None:
        """Draws at least one token for each sample, and submits the samples that ended."""
        with self._steps.step():
            ended = self._engine.step()
        for key, partial_sample in ended.items():
            if (assignment := self._generating.get(key.task)) is not None:
                assignment.samples[key.sample] = partial_sample
                assignment.lineage = self._engine.version.lineage
                self._end(assignment, key.sample)

    def _end(self, assignment: Assignment, number: int) -> None:
        """Submits ended samples for scoring: one by one where the environment may answer, else group by group."""
        if self._scorer.interactive:
            self._completer.submit(assignment, number)
        elif assignment.ended and assignment.id in self._generating:
            del self._generating[assignment.id]
            self._scoring[assignment.id] = assignment
            self._completer.submit(assignment, number)

    def _drop_lost(self) -> None:
        """Drops groups that this worker holds no longer: completed, failed, cancelled, or taken over by another."""
        for assignments in (self._generating, self._scoring):
            for task in [task for task, one in assignments.items() if not self._held.holds(one.task)]:
                self._engine.abort([task])
                del assignments[task]

    def _note(self, grown_s: float) -> None:
        """Notes the partial rollouts of groups begun at least `grown_s` ago, for the lease keeper to store."""
        self._noted_s = time.monotonic()
        begun = [*self._generating.values(), *self._scoring.values()]
        grown = [one for one in begun if self._noted_s - one.begun_s >= grown_s]
        for key, partial_sample in self._engine.partials([one.id for one in grown]).items():
            self._generating[key.task].samples[key.sample] = partial_sample
        self._held.note_partials([(one.task, one.partials()) for one in grown if one.begun])

    def _leave(self) -> None:
        """Graceful exit: finishes scoring, stores partials, and hands back the remaining tasks."""
        self._leaser.close()
        self._note(grown_s=0.0)  # the lease keeper stores them while the environment is still scoring
        self._completer.close(FINISH_SHARE * self._shutdown.time_s(self._config.rollout.grace_s))
        self._note(grown_s=0.0)
        self._lease_keeper.store_partials()
        self._hand_back()
        self._lease_keeper.close()  # no sooner: leases that nobody renews may run out before they are handed back
        self._lease_keeper.leave(self._shutdown.departure)

    def _quarantine(self) -> None:
        """Hands back all tasks, because the engine may hold parts of two versions."""
        self._lease_keeper.state = "quarantined"
        self._hand_back()

    def _hand_back(self) -> None:
        """Hands back all tasks, begun or not, and forgets them here."""
        self._leaser.forget()
        if held := self._lease_keeper.hand_back():
            log.info("handed back %s", counted(len(held), "task"))
        self._engine.abort(list(self._generating))
        for given_up in (self._generating, self._scoring, self._pending):
            given_up.clear()


def most_groups(config: Config) -> int:
    """Returns the most groups to generate at a time. At S = 0 this machine's workers share the only batch to lease."""
    share = -(-config.learner.batch_groups // config.rollout.workers)
    most = config.rollout.concurrent_groups
    return min(most, share) if config.staleness.s == 0 else most
