"""The scenario of a simulation: a learner, the rules of its queue, the machines that generate for it, their work."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from echo_queue.capacity.simulation.learner import LearnerTimes
from echo_queue.capacity.simulation.world import SimulatedPool
from echo_queue.queue import RunRules

PROMPTS_PER_GROUP = 10
"""The prompts that there are for each group that is to be trained, because tasks may die. They cost nothing."""


@dataclass(frozen=True)
class Scenario:
    """A run of `updates` that are counted after `warm_up` others.

    `work`: that of each prompt's group, in the unit of the pools' steps. `seed`: of all else that is drawn.
    """

    rules: RunRules
    times: LearnerTimes
    pools: Sequence[SimulatedPool]
    work: Callable[[int], float]
    updates: int
    warm_up: int = 0
    seed: int = 0
    learner_usd_per_hour: float = 0.0

    @property
    def prompts(self) -> int:
        return PROMPTS_PER_GROUP * (self.warm_up + self.updates + self.rules.s + 1) * self.rules.batch

    @property
    def t_bcast_s(self) -> float:
        """Seconds from the end of an update until the machines of the slowest pool serve its weights."""
        return self.times.publish_s + max(pool.fetch_s for pool in self.pools)
