"""Simulates a scenario. The same scenario gives the same figures, to the last bit."""

import math
from collections.abc import Sequence
from dataclasses import replace

from echo_queue.capacity.simulation.events import events
from echo_queue.capacity.simulation.figures import Figures, figures_of
from echo_queue.capacity.simulation.memory_queue import MemoryQueue
from echo_queue.capacity.simulation.moves import SimulatedQueue
from echo_queue.capacity.simulation.scenario import Scenario
from echo_queue.capacity.simulation.world import Events, SimulatedPool, World


def simulate(scenario: Scenario, queue: SimulatedQueue | None = None) -> Figures:
    """Simulates a scenario. Raises `ConfigError` if a file that it names cannot be read.

    `queue`: one with the scenario's rules and prompts, in place of one in memory.
    """
    rules, pools = scenario.rules, scenario.pools
    if rules.s == 0:  # no machine takes more than a batch
        pools = [replace(pool, steps_s=pool.steps_s[: rules.batch]) for pool in pools]
    queue = queue or MemoryQueue(rules, scenario.prompts)
    world = World(queue, rules, scenario.times, pools, drawn := events(pools, scenario.work, scenario.seed))
    world.run(scenario.warm_up)
    world.begin_account()
    before = queue.counts()
    world.run(scenario.warm_up + scenario.updates)
    tally = world.end_account()
    supply = _supply(scenario, pools, drawn)
    return figures_of(scenario, tally, world.clock.now_s, supply, (before, queue.counts()))


def _supply(scenario: Scenario, pools: Sequence[SimulatedPool], drawn: Events) -> float:
    """Returns what the machines that are there at first give, of what the learner needs (Σ μ · T_train / B)."""
    rate = sum(
        len(pool.steps_s) / pool.steps_s[-1] / drawn.slowness(number, machine)
        for number, pool in enumerate(pools)
        if pool.churn.begins_s == 0
        for machine in range(1, pool.machines + 1)
    )
    batch = scenario.rules.batch
    prompts = (scenario.warm_up + scenario.updates) * batch
    mean = math.fsum(map(scenario.work, range(prompts))) / prompts
    return rate / mean * scenario.times.train_s / batch
