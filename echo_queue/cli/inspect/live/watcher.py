"""Keeps the view of a run up to date, as the read-only user, in a thread of its own.

The code that shows the view never waits for Redis, and never fails because Redis is away.
"""

import threading
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import NamedTuple, Self

from echo_queue.cli.inspect.live.store_probe import StoreProbe
from echo_queue.cli.inspect.live.view import RunView
from echo_queue.config import Config
from echo_queue.connections.connect import connect_redis
from echo_queue.connections.endpoints import EMBEDDED
from echo_queue.connections.storage.object_store import ObjectStore
from echo_queue.errors import EchoQueueError
from echo_queue.evaluation.results import EvaluationResult
from echo_queue.launch.supervisor import RoleState
from echo_queue.queue import Caller, Evaluations, Monitor, Payloads, diagnosis
from echo_queue.queue.dead_causes import LOOKED_AT, DeadCause
from echo_queue.queue.dead_causes import causes as causes_of
from echo_queue.queue.diagnosis import NAMED
from echo_queue.queue.types import FailedSet, Status
from echo_queue.reporting import outcome
from echo_queue.reporting.evaluation_record import EvaluationRecord, newest
from echo_queue.reporting.metrics import Summary, UpdateMetrics, summarise
from echo_queue.reporting.run_record import RunRecord, skew

RECENT_UPDATES = 20
STATUS_DEADLINE_S = 2.0
STILL_S = 10.0
"""A run counts as standing still after this time; an update of a large model may take as long."""
STORE_ASKED_S = 3.0
"""The store is asked whether it answers once nothing has moved for this time."""
OPEN = "open: waits for prompts"
"""The phase of a run that is kept open and has nothing to do."""
NOT_BEGUN = "EQNORUN"
"""The queue's error for a run whose learner has not started yet."""


class Figures(NamedTuple):
    """The sums of the updates that the view shows, made once for each new update, and not for each picture."""

    summary: Summary
    recent: Summary
    rewards: tuple[float, ...]

    @classmethod
    def of(cls, updates: Sequence[UpdateMetrics]) -> Self:
        rewards = tuple(update.reward_mean for update in updates)
        return cls(summarise(updates), summarise(updates[-RECENT_UPDATES:]), rewards)


def monitor(config: Config, store: ObjectStore | None = None) -> Monitor:
    """Returns the run's queue as the read-only user. Raises `ServiceError` where Redis cannot be reached.

    `store`: from which large groups are read.
    """
    return Monitor(monitor_caller(config), Payloads.of(config, store))


def monitor_caller(config: Config) -> Caller:
    """Returns a connection to Redis as the read-only user. Raises `ServiceError` where it cannot be reached."""
    return Caller(connect_redis(config, "monitor", STATUS_DEADLINE_S), config.run.name, STATUS_DEADLINE_S)


def last_word(config: Config) -> outcome.Outcome | None:
    """Returns the last answers of a run that has ended together with its embedded services; None for any other."""
    return outcome.read(config) if config.redis.url == EMBEDDED else None


class RunWatcher:
    """Reads the state of a run every `period_s`; `picture()` is at most about that old."""

    def __init__(self, config: Config, period_s: float = 1.0) -> None:
        self.status: Status | None = None
        self.workers_came = False
        self.trouble = ""
        self.figures = Figures.of(())
        self.still_s = 0.0
        """Time since the last move in the queue."""
        self.held_up: tuple[str, ...] = ()
        """The causes that keep the run from moving, as far as the queue shows them."""
        self.ended = False
        """True once the run has ended together with its embedded services, of which `status` is the last word."""
        self._config = config
        self._period_s = period_s
        self._began: float | None = None
        self._loading_until = time.monotonic()
        self._answered = self._learner_came = False
        self.dead: tuple[DeadCause, ...] = ()
        """The reasons of which prompts died, the commonest first."""
        self.failed: tuple[FailedSet, ...] = ()
        """The sets that were refused, or of which chunks cannot be read."""
        self._losses: tuple[int, Mapping[str, int], Mapping[str, str]] = (0, {}, {})
        self.evaluations: tuple[EvaluationResult, ...] = ()
        """The newest result of each evaluation."""
        self._record = RunRecord(config.run.dir / "metrics.jsonl")
        self._updates: Sequence[UpdateMetrics] = ()
        self._evaluated = EvaluationRecord(config.run.dir)
        self._concluded: tuple[int, int] | None = None
        """The figures that change with a round of evaluation, as of when the results were read; None: never."""
        self._queue: Monitor | None = None
        self._told: Evaluations | None = None
        self._over = threading.Event()
        self._stillness = diagnosis.Stillness()
        self._store, self._looked_at = StoreProbe(config), False
        self._thread = threading.Thread(target=self._watch, name="watcher", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join(STATUS_DEADLINE_S + 5)

    def expect_within(self, seconds: float) -> None:
        """Lets roles and services that were not heard yet count as loading, and not as missing, for so long from now.

        The first call says that the roles are being started: whoever was heard before it is another one.
        """
        self._began = time.monotonic() if self._began is None else self._began
        self._loading_until = time.monotonic() + seconds
        self.held_up = ()

    def refresh(self) -> None:
        """Reads the queue and the updates now. The watcher's thread calls it, and so may any other."""
        try:
            if self._queue is None:
                caller = monitor_caller(self._config)
                self._queue, self._told = Monitor(caller, Payloads.of(self._config)), Evaluations(caller)
            self._read_updates(self._queue)
            self.status, self.trouble, self._answered = self._queue.status(), "", True
            self._read_evaluations(self.status)
            self._read_losses(self._queue, self.status)
        except EchoQueueError as error:
            self.status, self._queue, self._told = None, None, None
            self._read_updates(None)
            self._read_evaluations(None)
            if end := last_word(self._config):
                self.status, self.dead, self.held_up, self.ended = end.status, end.dead, (), True
                self.trouble = f"as of its end, {end.ended:%Y-%m-%d %H:%M} UTC; its services have ended with it"
                return
            expected = NOT_BEGUN in str(error) or (self._loading and not self._answered)
            self.trouble = "" if expected else f"{error.problems[0].where}: {error.problems[0].what}"
        self._note_who_came()
        self.still_s = self._stillness.seconds(self.status)
        self.held_up = self._causes()

    def _read_updates(self, queue: Monitor | None) -> None:
        updates = self._record.read(queue)
        if updates is not self._updates:
            self._updates, self.figures = updates, Figures.of(updates)

    def _read_evaluations(self, status: Status | None) -> None:
        """Reads the results of evaluations, if a round was concluded since; without Redis, once, those of the file."""
        under_way = status.evaluation if status else None
        seen = (status.counts.get("concluded", 0), under_way.number if under_way else 0) if status else (-1, 0)
        if seen != self._concluded:
            self.evaluations = newest(self._evaluated.read(self._told if status else None))
            self._concluded = seen

    def _read_losses(self, queue: Monitor, status: Status) -> None:
        """Reads the reasons of deaths, and of sets that failed, if there are more or fewer of them than before."""
        counts, refused = queue.failed_sets(), queue.refused_sets()
        if status.dead != self._losses[0]:
            self.dead = tuple(causes_of(queue.dead(LOOKED_AT)))
        if (counts, refused) != self._losses[1:]:
            found = (queue.submission_status(name) for name in list(counts)[:NAMED])
            self.failed = (
                *(FailedSet(name, 0, 0, why) for name, why in list(refused.items())[:NAMED]),
                *(
                    FailedSet(one.name, one.chunks, len(one.failed), one.failed[0].reason)
                    for one in found
                    if one and one.failed
                ),
            )
        self._losses = status.dead, counts, refused

    @property
    def _loading(self) -> bool:
        """Returns whether roles that this command has started may not have been heard yet."""
        return time.monotonic() < self._loading_until

    def _note_who_came(self) -> None:
        if self.status:
            workers = [worker for worker in self.status.workers if worker.heartbeat or self._began is None]
            self.workers_came = self.workers_came or any(self._is_of_now(worker.silent_ms) for worker in workers)
            self._learner_came = self._learner_came or (
                self.status.learner_came and self._is_of_now(self.status.learner_silent_ms)
            )

    def _is_of_now(self, silent_ms: int) -> bool:
        """Returns whether a role that is silent for so long was heard since this command began to start roles."""
        return self._began is None or 0 <= silent_ms < (time.monotonic() - self._began) * 1000

    @property
    def waits_for_prompts(self) -> bool:
        """Returns whether the run is kept open and, as far as the queue shows, has nothing to do."""
        return bool(self.status and self.status.waits_for_prompts and not self.held_up)

    @property
    def skew(self) -> str:
        """Which roles run another release than this command, as far as it is known; else an empty text."""
        return skew(self.status, self._record)

    def _causes(self) -> tuple[str, ...]:
        if self._loading and not (self.workers_came and self._learner_came):
            return ()
        causes = (*self._store_is_away(), *self._by_the_queue())
        return (*causes, *self._by_the_fleet()) if causes else ()

    def _by_the_queue(self) -> tuple[str, ...]:
        if self.still_s < STILL_S:
            return diagnosis.silent(self.status) if self.status else ()
        try:
            return diagnosis.causes(diagnosis.snapshot(self._queue) if self._queue else None, self.still_s)
        except EchoQueueError:
            return diagnosis.causes(None, self.still_s)

    def _by_the_fleet(self) -> tuple[str, ...]:
        """Returns the last decision of the fleet's controller, if one leads, for it may have dismissed the workers."""
        try:
            fleet = self._queue.fleet() if self._queue else None
        except EchoQueueError:
            return ()
        return (f"the fleet's controller: {fleet.why}",) if fleet and fleet.leads_ms and fleet.why else ()

    def _store_is_away(self) -> tuple[str, ...]:
        """Asks the store of a run that stands still; on the first look, by the time of its last update."""
        first, self._looked_at = not self._looked_at, True
        goes_on = self.status is not None and not self.status.finished and diagnosis.lives(self.status)
        old = first and self.newest is not None and time.time() - self.newest.time_s >= STILL_S
        if not goes_on or not (old or self.still_s >= STORE_ASKED_S):
            return ()
        return tuple(filter(None, [self._store.trouble()]))

    @property
    def newest(self) -> UpdateMetrics | None:
        """Returns the last update; None before the first one."""
        return self._updates[-1] if self._updates else None

    @property
    def elapsed_s(self) -> float | None:
        """Returns the time since the first update began, until the last one ended; None before it has."""
        return self.figures.summary.seconds if self.figures.summary.updates else None

    def picture(
        self,
        phase: str,
        roles: Sequence[RoleState] = (),
        redis_cli: str = "",
        detail: str = "",
        *,
        elapsed_s: float | None = None,
    ) -> RunView:
        """Returns the view as of the last refresh. `elapsed_s`: None stands for that of the updates."""
        return RunView(
            name=self._config.run.name,
            phase=phase,
            elapsed_s=self.elapsed_s if elapsed_s is None else elapsed_s,
            s=self.status.rules.s if self.status else self._config.staleness.s,
            summary=self.figures.summary,
            recent=self.figures.recent,
            rewards=self.figures.rewards,
            status=self.status,
            trouble="; ".join(filter(None, [self.trouble, self.skew])),
            held_up=self.held_up,
            dead=self.dead,
            failed=self.failed,
            evaluations=self.evaluations,
            roles=tuple(roles),
            redis_cli="" if self.ended else redis_cli,
            detail=detail,
            over=self.ended or bool(self.status and self.status.finished),
        )

    def _watch(self) -> None:
        while not self._over.is_set():
            self.refresh()
            self._over.wait(self._period_s)
