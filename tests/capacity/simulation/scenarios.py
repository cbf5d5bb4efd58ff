"""Small scenarios, in times of an update (10 s). A unit of work takes a machine a second."""

import math
from dataclasses import replace
from typing import Any

from echo_queue.capacity.bounds.lengths import Lengths
from echo_queue.capacity.fleet_file import Churn
from echo_queue.capacity.simulation import Scenario
from echo_queue.capacity.simulation.events import GroupWork
from echo_queue.capacity.simulation.learner import LearnerTimes
from echo_queue.capacity.simulation.world import SimulatedPool
from echo_queue.queue import RunRules

T_TRAIN_S = 10.0
RULES = RunRules(lease_ms=16_000, longest_first=False)


def scenario(
    s: int = 4,
    kappa: int = 1,
    *,
    generation: float = 0.5,
    spread: float = 0.6,
    supply: float = 1.2,
    batch: int = 8,
    groups: int = 1,
    updates: int = 100,
    warm_up: int = 20,
    seed: int = 0,
    rules: dict[str, Any] | None = None,
    pool: dict[str, Any] | None = None,
    churn: dict[str, Any] | None = None,
) -> Scenario:
    """A scenario with one pool of machines that hold `groups` each. `generation`: the mean of their times."""
    machines = max(1, round(supply * batch * generation))
    steps_s = (1.0,) * groups
    one = SimulatedPool("a", machines, steps_s, fetch_s=3.0, progress_s=2.0, churn=Churn.model_validate(churn or {}))
    return Scenario(
        replace(RULES, s=s, batch=batch, kappa=kappa, **(rules or {})),
        LearnerTimes(T_TRAIN_S, publish_s=0.5, kappa=kappa),
        (replace(one, **(pool or {})),),
        GroupWork(Lengths(generation * T_TRAIN_S, spread, math.inf), 1, seed),
        updates,
        warm_up,
        seed,
    )
