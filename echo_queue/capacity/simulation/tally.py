"""The account of a simulation, from the end of its warm-up on."""

from collections import defaultdict
from dataclasses import dataclass, field
from enum import StrEnum


class Cause(StrEnum):
    """A cause for which the learner waits."""

    machines = "machines"
    """All machines are busy: the supply is short."""
    weights = "weights"
    """Machines are free, and weights that tasks need are on their way or not published yet."""
    bound = "bound"
    """Machines are free, and S admits no more tasks: what is generated now takes too long for it."""
    pace = "pace"
    """Machines are free, and the window admits no more tasks."""
    late = "late groups"
    """Groups that were too late before are waited for."""


@dataclass
class Tally:
    """The account. Work is in the unit of the pools' steps; all counts begin at `began_s`."""

    began_s: float = 0.0
    updates: int = 0
    groups: int = 0
    train_s: float = 0.0
    lags: int = 0
    """The sum of the lags of all groups trained."""
    worst_lag: int = 0
    waits_s: defaultdict[Cause, float] = field(default_factory=lambda: defaultdict(float))
    generated: float = 0.0
    lost: float = 0.0
    """Work that was lost with machines."""
    stale: float = 0.0
    """Work that was thrown away as too old."""
    machines_lost: int = 0
    capacity: float = 0.0
    """The work for which machines had time."""
    paid_s: defaultdict[int, float] = field(default_factory=lambda: defaultdict(float))
    """The seconds of machines that are paid for, by pool."""
