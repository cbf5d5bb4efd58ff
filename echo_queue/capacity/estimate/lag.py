"""The lag that a run's times lead to, against its bound S.

Worst lag = κ + ⌈(T_bcast + t_gen + t_queue) / T_train⌉. A group's oldest token is drawn with weights that stay the
workers' newest for κ updates. They take T_bcast to arrive; the group takes t_gen to finish and waits t_queue until the
learner drains it; an update takes T_train meanwhile. The queue itself enforces S, whatever the estimate says: what
would be too old goes back and is generated again.
"""

import math
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import PlainSerializer

from echo_queue.documents import printed
from echo_queue.queue.staleness_rules import kappa_needed

QUEUED_UPDATES = 0.5
"""t_queue / T_train: a group that finishes at any moment of an update waits for half of one, on average."""


def _if_finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


@printed("holds", keeps_up="publications_keep_up")
@dataclass(frozen=True)
class Lag:
    """`kappa_needed`: the smallest κ that publications can keep up with. `worst`: the largest lag, in updates."""

    s: int
    kappa: int
    kappa_needed: int
    worst: int
    least_t_train_s: Annotated[float, PlainSerializer(_if_finite)]
    """The shortest update with which `worst` stays within S; infinite if none does."""

    @property
    def holds(self) -> bool:
        return self.worst <= self.s

    @property
    def publications_keep_up(self) -> bool:
        return self.kappa_needed <= self.kappa


def lag(s: int, kappa: int | Literal["auto"], *, t_train_s: float, t_bcast_s: float, t_gen_s: float) -> Lag:
    """Reckons with the κ of the configuration, or with the needed one where that is larger or κ is "auto"."""
    needed = kappa_needed(t_bcast_s, t_train_s)
    configured = min(needed, s + 1) if kappa == "auto" else kappa
    effective, away_s = max(configured, needed), t_bcast_s + t_gen_s
    rest = s - effective - QUEUED_UPDATES
    least = away_s / rest if rest > 0 else math.inf
    return Lag(s, configured, needed, effective + math.ceil(away_s / t_train_s + QUEUED_UPDATES), least)
