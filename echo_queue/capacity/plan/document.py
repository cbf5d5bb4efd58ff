"""What a plan says: the machines, what they cost, how busy they keep the learner, and what that rests on.

These are the values of `echo-queue plan --json`. Money is in USD, times are in seconds, and a value that does not exist
is null.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from typing import Literal

from echo_queue.capacity.fleet_file import Form
from echo_queue.capacity.simulation import Figures

Binds = Literal["learner", "throughput", "staleness", "dissemination", "money"]
"""What keeps the learner from being busier: itself, the machines that may be had, generation times against S, T_bcast
against S or κ, or the budget."""


@dataclass(frozen=True)
class PlannedSet:
    """The cheapest set of machines for one bound and one way of the weights, by the bounds.

    `reached`: whether it keeps the learner as busy as is wanted. If not, it is the set that costs least per update
    among the cheapest ones for 95, 90, … %. `supply`: groups that the machines make, in units of what the learner
    consumes when it never waits. `staleness`: the bound y. `t_bcast_s`: of the last worker. `group_s`: of a group of
    the tail in the slowest pool. `late_share`: of groups that will be generated again. `serial_utilisation`: by
    ECHO-2's own rule.
    """

    s: int
    kappa: int
    form: Form
    peers: bool
    machines: Mapping[str, int]
    reached: bool
    binds: Binds
    utilisation: float
    supply: float
    staleness: float | None
    serial_utilisation: float
    t_bcast_s: float | None
    group_s: float | None
    worst_lag: int | None
    late_share: float
    pools_usd_per_hour: float
    usd_per_hour: float
    usd_per_update: float | None
    usd_per_million_tokens: float | None
    usd_per_run: float | None


@dataclass(frozen=True)
class Baseline:
    """The same learner with generation at its own place, on GPUs of its own kind.

    `sync`: its own GPUs generate and train in turns. `async`: further GPUs generate, within the same S.
    """

    kind: Literal["sync", "async"]
    generating_gpus: int
    utilisation: float
    usd_per_hour: float
    usd_per_update: float
    usd_per_million_tokens: float
    saving: float | None
    """What the plan saves of it, as a share."""


@dataclass(frozen=True)
class PoolFigures:
    """A pool by itself. `useful_share`: of paid time. `supply`: of one machine. `age_days`: of its price."""

    name: str
    gpu: str
    region: str
    machines: int
    max_machines: int
    usd_per_hour: float
    useful_share: float
    supply: float
    usd_per_thousand_groups: float
    t_bcast_s: float
    group_s: float
    age_days: int
    old: bool
    assumed: tuple[str, ...]
    """The keys of the pool that nobody measured."""


@dataclass(frozen=True)
class Input:
    """A number that the plan rests on. `said`: its source if it was measured, else the reason to assume it."""

    key: str
    kind: Literal["measured", "assumed", "price"]
    value: float
    said: str
    on: date | None = None


@dataclass(frozen=True)
class Sensitivity:
    """What an update costs if an assumed number is half or twice what the fleet file says; null if that cannot be
    planned."""

    key: str
    usd_per_update_at_half: float | None
    usd_per_update_at_double: float | None


@dataclass(frozen=True)
class Plan:
    """The plan, the same for other bounds and other ways of the weights, and what it is compared with.

    `left_out`: pools that cannot be planned with, and why. `by`: what states the figures, but those of
    `simulated`.
    """

    fleet: str
    on: date
    by: Literal["bounds"]
    wanted_utilisation: float
    chosen: PlannedSet
    simulated: Figures | None
    """The chosen set in a simulation, with seed 0 (`echo-queue simulate`); null if it has no machines."""
    cheaper: PlannedSet | None
    """A set with which the learner is less busy than is wanted, and an update costs less."""
    pools: tuple[PoolFigures, ...]
    old_prices: tuple[str, ...]
    """Keys of prices that are older than the fleet file allows without a mark."""
    left_out: Mapping[str, str]
    other_bounds: tuple[PlannedSet, ...]
    other_ways: tuple[PlannedSet, ...]
    baselines: tuple[Baseline, ...]
    inputs: tuple[Input, ...]
    sensitivities: tuple[Sensitivity, ...]
