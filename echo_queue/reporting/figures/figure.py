"""What a figure is, and what it is made of.

A figure is a pure function of one `Reading`. Its labels have few values, whatever a worker writes: never a worker's
name and never a prompt.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from echo_queue.evaluation.results import EvaluationResult
from echo_queue.queue import Audit, FleetStatus, Status
from echo_queue.queue.pool_status import PoolStatus, pools_of
from echo_queue.reporting.metrics import Summary, UpdateMetrics, summarise

Values = Mapping[tuple[str, ...], float]
"""The value for each combination of labels; without labels its key is empty. What is not known is left out."""
RUN = "run"
"""The label that each figure has besides its own: the run's name."""


@dataclass(frozen=True)
class Reading:
    """A reading holds what Redis said of a run, within a few round trips.

    `status`: its workers name few pools (`bounds`). `recorded`: how many updates were ever recorded. `updates`: the
    newest of the surviving history. `evaluations`: the newest result of each. `dead`: dead prompts by cause.
    """

    status: Status
    audit: Audit
    fleet: FleetStatus
    recorded: int
    updates: tuple[UpdateMetrics, ...]
    evaluations: tuple[EvaluationResult, ...]
    dead: Mapping[str, int]

    @cached_property
    def pools(self) -> tuple[PoolStatus, ...]:
        return pools_of(self.status.workers)

    @cached_property
    def recent(self) -> Summary | None:
        """The figures of the newest updates together; None before the first one."""
        return summarise(self.updates) if self.updates else None

    @property
    def update(self) -> UpdateMetrics | None:
        """The newest update; None before the first one."""
        return self.updates[-1] if self.updates else None


@dataclass(frozen=True)
class Figure:
    """One figure, by its name in Prometheus. `labels`: its own, besides `RUN`.

    `meaning` defines it in one sentence. `source`: where it is measured. `normal`: what a healthy run shows. `action`:
    what to do where it is not. A counter only grows while Redis keeps the run; a gauge may fall.
    """

    name: str
    kind: Literal["gauge", "counter"]
    meaning: str
    source: str
    normal: str
    action: str
    values: Callable[[Reading], Values]
    labels: tuple[str, ...] = ()


@dataclass(frozen=True)
class Subject:
    """Figures of one subject, under its title."""

    title: str
    figures: tuple[Figure, ...]


def one(value: float | None) -> Values:
    """Returns the values of a figure without labels; none if it is not known."""
    return {} if value is None else {(): value}
