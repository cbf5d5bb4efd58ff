"""Keeps the view of a run up to date, from the read-only user and the metrics file, in a thread of its own.

The code that shows the view never waits for Redis, and never fails because Redis is away.
"""

import threading
import time
from collections.abc import Sequence
from types import TracebackType
from typing import NamedTuple, Self

from echo_queue.cli.live.view import RunView
from echo_queue.config import Config
from echo_queue.connections.connect import connect_redis
from echo_queue.connections.endpoints import EMBEDDED
from echo_queue.errors import EchoQueueError, Problem, ServiceError
from echo_queue.launch.supervisor import RoleState
from echo_queue.queue import Caller, Monitor, diagnosis
from echo_queue.queue.types import Status
from echo_queue.reporting import outcome
from echo_queue.reporting.metrics import MetricsReader, Summary, UpdateMetrics, summarise

RECENT_UPDATES = 20
STATUS_DEADLINE_S = 2.0
STILL_S = 10.0
"""A run counts as standing still after this time; an update of a large model may take as long."""
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


def monitor(config: Config) -> Monitor:
    """Returns the run's queue as the read-only user. Raises `ServiceError` where Redis cannot be reached."""
    try:
        client = connect_redis(config, "monitor", STATUS_DEADLINE_S)
    except ServiceError as error:
        if config.redis.url != EMBEDDED:
            raise
        what = f"the embedded services of this run do not answer: {error.problems[0].what}"
        fix = "`echo-queue run CONFIG` continues the run; `echo-queue services CONFIG` starts the services alone"
        raise ServiceError(Problem("redis.url", what, fix)) from None
    return Monitor(Caller(client, config.run.name, STATUS_DEADLINE_S))


def last_word(config: Config) -> outcome.Outcome | None:
    """Returns the last answers of a run that has ended together with its embedded services; None for any other."""
    return outcome.read(config) if config.redis.url == EMBEDDED else None


class RunWatcher:
    """Reads the state of a run every `period_s`; `picture()` is at most about that old."""

    def __init__(self, config: Config, period_s: float = 1.0) -> None:
        self.status: Status | None = None
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
        self._metrics = MetricsReader(config.run.dir / "metrics.jsonl")
        self._updates: Sequence[UpdateMetrics] = ()
        self._queue: Monitor | None = None
        self._started = time.monotonic()
        self._over = threading.Event()
        self._stillness = diagnosis.Stillness()
        self._thread = threading.Thread(target=self._watch, name="watcher", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join(STATUS_DEADLINE_S + 5)

    def refresh(self) -> None:
        """Reads the metrics and the queue now. The watcher's thread calls it, and so may any other."""
        updates = self._metrics.read()
        if updates is not self._updates:
            self._updates, self.figures = updates, Figures.of(updates)
        try:
            self._queue = self._queue or monitor(self._config)
            self.status, self.trouble = self._queue.status(), ""
        except EchoQueueError as error:
            self.status, self._queue = None, None
            if end := last_word(self._config):
                self.status, self.held_up, self.ended = end.status, (), True
                self.trouble = f"as of its end, {end.ended:%Y-%m-%d %H:%M} UTC; its services have ended with it"
                return
            self.trouble = "" if NOT_BEGUN in str(error) else f"{error.problems[0].where}: {error.problems[0].what}"
        self.still_s = self._stillness.seconds(self.status)
        self.held_up = self._causes()

    def _causes(self) -> tuple[str, ...]:
        if self.still_s < STILL_S:
            return diagnosis.silent(self.status) if self.status else ()
        try:
            return diagnosis.causes(diagnosis.snapshot(self._queue) if self._queue else None, self.still_s)
        except EchoQueueError:
            return diagnosis.causes(None, self.still_s)

    def picture(self, phase: str, roles: Sequence[RoleState] = (), redis_cli: str = "", detail: str = "") -> RunView:
        """Returns the view as of the last refresh."""
        return RunView(
            name=self._config.run.name,
            phase=phase,
            elapsed_s=time.monotonic() - self._started,
            s=self._config.staleness.s,
            summary=self.figures.summary,
            recent=self.figures.recent,
            rewards=self.figures.rewards,
            status=self.status,
            trouble=self.trouble,
            held_up=self.held_up,
            roles=tuple(roles),
            redis_cli=redis_cli,
            detail=detail,
        )

    def _watch(self) -> None:
        while not self._over.is_set():
            self.refresh()
            self._over.wait(self._period_s)
