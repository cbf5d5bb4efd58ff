"""Reads what the figures are made of, from Redis alone, as the user `monitor`.

What is costly is read again only when the queue's counters say that it has changed: reasons of deaths, and results of
evaluations.
"""

from collections.abc import Mapping
from dataclasses import replace

from echo_queue.evaluation.results import EvaluationResult, result_of
from echo_queue.queue import Caller, Evaluations, Monitor, Status, UpdateRecords
from echo_queue.queue.dead_causes import LOOKED_AT
from echo_queue.reporting.evaluation_record import newest
from echo_queue.reporting.figures.bounds import dead_by_cause, with_few_pools
from echo_queue.reporting.figures.figure import Reading
from echo_queue.reporting.metrics import SurvivingUpdates, UpdateMetrics, update_of

RECENT_UPDATES = 20
"""Updates that recent figures are made of, as in `echo-queue status`."""


class RunReader:
    """Reads one run, again and again. One thread at a time may call it."""

    def __init__(self, caller: Caller) -> None:
        self._monitor, self._records, self._told = Monitor(caller), UpdateRecords(caller), Evaluations(caller)
        self._dead: Mapping[str, int] = {}
        self._died: tuple[int, ...] | None = None
        self._evaluations: tuple[EvaluationResult, ...] = ()
        self._concluded: tuple[int, int] | None = None

    def read(self) -> Reading:
        """Returns what Redis says now. Raises `EchoQueueError` if it does not answer, or knows no such run."""
        status = self._monitor.status()
        return Reading(
            status=replace(status, workers=with_few_pools(status.workers)),
            audit=self._monitor.audit(),
            fleet=self._monitor.fleet(),
            recorded=self._records.recorded(),
            updates=self._updates(),
            evaluations=self._results(status),
            dead=self._causes(status),
        )

    def _updates(self) -> tuple[UpdateMetrics, ...]:
        lines = (record.line for record in self._records.newest(RECENT_UPDATES))
        return tuple(SurvivingUpdates().with_these([update for line in lines if (update := update_of(line))]))

    def _causes(self, status: Status) -> Mapping[str, int]:
        """Returns the dead prompts by cause; their reasons are read if others have died, or were revived, since."""
        died = status.dead, status.counts.get("buried", 0), status.counts.get("revived", 0)
        if died != self._died:
            self._dead = dead_by_cause(self._monitor.dead(LOOKED_AT), status.dead)
            self._died = died
        return self._dead

    def _results(self, status: Status) -> tuple[EvaluationResult, ...]:
        """Returns the newest results; they are read if a round was concluded since."""
        under_way = status.evaluation.number if status.evaluation else 0
        concluded = status.counts.get("concluded", 0), under_way
        if concluded != self._concluded:
            self._evaluations = newest([result for line in self._told.lines() if (result := result_of(line))])
            self._concluded = concluded
        return self._evaluations
