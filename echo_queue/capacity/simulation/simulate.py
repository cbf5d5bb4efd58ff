"""Simulates a setting. The same setting and seed give the same figures, to the last bit."""

import math
from collections.abc import Callable, Sequence

import numpy as np

from echo_queue.capacity.simulation.figures import Figures, figures_of
from echo_queue.capacity.simulation.generation import GroupWork, Pick, losses
from echo_queue.capacity.simulation.learner import LearnerTimes
from echo_queue.capacity.simulation.memory_queue import MemoryQueue
from echo_queue.capacity.simulation.moves import SimulatedQueue
from echo_queue.capacity.simulation.setting import Pool, Setting, read_generation_times, read_losses
from echo_queue.capacity.simulation.world import Events, MachinePool, World

STRAGGLERS = 3
"""The stream of random numbers that says which machines are slow (`generation.py` has the others)."""
PROMPTS_PER_GROUP = 10
"""The prompts that there are for each group that is to be trained, because tasks may die. They cost nothing."""


def simulate(
    setting: Setting,
    seed: int = 0,
    *,
    work: Callable[[int], float] | None = None,
    queue: SimulatedQueue | None = None,
) -> Figures:
    """Simulates a setting. Raises `ConfigError` if a file that it names cannot be read.

    `work`: the generation time of each prompt's group, in place of those that are drawn. `queue`: one with the
    setting's rules and prompts, in place of one in memory.
    """
    learner, simulation = setting.learner, setting.simulation
    work = work or GroupWork(setting.generation, read_generation_times(setting.generation), seed)
    lost = losses(setting, [read_losses(pool) for pool in setting.pools], seed)
    pools = [machine_pool(pool, number, setting, seed) for number, pool in enumerate(setting.pools)]
    times = LearnerTimes(learner.t_train_s, learner.publish_s, setting.kappa)
    queue = queue or MemoryQueue(setting.rules, prompts_of(setting))
    world = World(queue, setting.rules, times, pools, Events(work, lost, Pick(seed)))
    world.run(simulation.warm_up)
    world.begin_account()
    before = queue.counts()
    world.run(simulation.warm_up + simulation.updates)
    tally = world.end_account()
    return figures_of(setting, tally, world.clock.now_s, _supply(pools, work, setting), (before, queue.counts()))


def machine_pool(pool: Pool, number: int, setting: Setting, seed: int) -> MachinePool:
    """Returns the machines of a pool. At S = 0 no machine takes more than a batch."""
    most = min(pool.concurrent_groups, setting.learner.batch_groups) if setting.staleness.s == 0 else None
    return MachinePool(
        name=pool.name,
        machines=pool.machines,
        steps_s=_steps_s(pool, number, most or pool.concurrent_groups, seed),
        fetch_s=pool.fetch_s,
        boot_s=pool.boot_s,
        begins_s=pool.begins_s,
        ends_s=pool.ends_s,
        progress_s=pool.progress_s,
        notice=pool.notice,
    )


def _steps_s(pool: Pool, number: int, groups: int, seed: int) -> Callable[[int], Sequence[float]]:
    fast, slow = (1 / pool.speed,) * groups, (1 / pool.speed / pool.straggler_speed,) * groups

    def steps_s(machine: int) -> Sequence[float]:
        draw = np.random.default_rng((seed, STRAGGLERS, number, machine))
        return slow if draw.random() < pool.stragglers else fast

    return steps_s


def prompts_of(setting: Setting) -> int:
    """Returns the number of prompts for which a simulation has need."""
    batches = setting.simulation.warm_up + setting.simulation.updates + setting.staleness.s + 1
    return PROMPTS_PER_GROUP * batches * setting.learner.batch_groups


def _supply(pools: Sequence[MachinePool], work: Callable[[int], float], setting: Setting) -> float:
    """Returns what the machines that are there at first give, of what the learner needs (Σ μ · T_train / B)."""
    rate = sum(
        len(pool.steps_s(machine)) / pool.steps_s(machine)[-1]
        for pool in pools
        if pool.begins_s == 0
        for machine in range(1, pool.machines + 1)
    )
    updates = setting.simulation.warm_up + setting.simulation.updates
    prompts = updates * setting.learner.batch_groups
    mean_s = math.fsum(map(work, range(prompts))) / prompts
    return rate / mean_s * setting.learner.t_train_s / setting.learner.batch_groups
