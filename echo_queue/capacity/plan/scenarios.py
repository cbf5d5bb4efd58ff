"""A fleet as the scenario of a simulation, whose figures stand beside those of the bounds. Work is in tokens.

A group's work is its longest sample (`lengths.py`). A machine holds as many groups as it has in flight on average, by
Little's law, and is as fast as makes its rate that of the plan. Weights reach all workers when they reach the last one.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from echo_queue.capacity.bounds.offers import generation, lengths_of
from echo_queue.capacity.fleet_file import Churn, Fleet
from echo_queue.capacity.plan.planning import Setting, plan_setting
from echo_queue.capacity.simulation import Scenario
from echo_queue.capacity.simulation.events import GroupWork
from echo_queue.capacity.simulation.learner import LearnerTimes
from echo_queue.capacity.simulation.measured_files import read_lengths
from echo_queue.capacity.simulation.world import SimulatedPool
from echo_queue.errors import ConfigError, Problem
from echo_queue.queue import RunRules
from echo_queue.queue.staleness_rules import kappa_needed


def scenario_at(fleet: Fleet, s: int, seed: int = 0) -> Scenario:
    """Returns the scenario of a fleet at this bound, with the machines that its file names, or that a plan rents.

    The fleet's pools all have prices. Raises `ConfigError` if there are no machines.
    """
    setting = Setting(fleet, s, fleet.weights.form, fleet.weights.peers)
    if machines := fleet.simulation.machines:
        t_bcast_s = max(pool.fetch_s for pool in _pools(setting, 1, machines))
        kappa = fleet.run.kappa
        sustained = kappa_needed(t_bcast_s, fleet.learner.t_train_s.value) if kappa == "any" else kappa
        return scenario_of(setting, min(sustained, s + 1), machines, seed)
    planned = plan_setting(fleet, s, setting.form, peers=setting.peers)
    if not planned.machines:
        fix = "name the machines that it is to have, such as { spot = 4 }"
        raise ConfigError(Problem("simulation.machines", f"a plan with S = {s} rents none", fix))
    return scenario_of(setting, planned.kappa, planned.machines, seed)


def scenario_of(setting: Setting, kappa: int, machines: Mapping[str, int], seed: int = 0) -> Scenario:
    """Returns the scenario of these machines. Raises `ConfigError` for a file of lengths that cannot be read."""
    fleet, simulation = setting.fleet, setting.fleet.simulation
    rules = replace(RunRules.of(simulation), s=setting.s, batch=fleet.run.groups_per_update, kappa=kappa)
    measured = read_lengths(simulation.lengths_file) if simulation.lengths_file else ()
    return Scenario(
        replace(rules, longest_first=False),  # nothing is known of the lengths of prompts
        LearnerTimes(fleet.learner.t_train_s.value, publish_s=0.0, kappa=kappa),
        tuple(_pools(setting, kappa, machines)),
        GroupWork(lengths_of(fleet), fleet.run.group_size, seed, measured),
        simulation.updates,
        simulation.warm_up,
        seed,
        fleet.learner.price.usd_per_hour,
    )


def _pools(setting: Setting, kappa: int, machines: Mapping[str, int]) -> Iterator[SimulatedPool]:
    fleet = setting.fleet
    offers = {one.name: one for one in setting.offers(kappa) if one.name in machines}
    workers = sum(one.workers * machines[name] for name, one in offers.items())
    longest = lengths_of(fleet).mean_of_longest(fleet.run.group_size)
    for name, one in offers.items():
        pool, made = fleet.pools[name], generation(fleet, fleet.pools[name])
        rate = pool.gpus * made.groups_per_s * fleet.run.accepted.value
        groups = max(1, round(rate * made.mean_s))
        yield SimulatedPool(
            name,
            machines[name],
            steps_s=(groups / (rate * longest),) * groups,
            fetch_s=one.broadcast_s + (workers - 1) * setting.way.next_worker_s,
            boot_s=pool.boot_s.value,
            progress_s=fleet.run.progress_s or 0.0,
            losses_per_hour=pool.interruptions_per_hour.value,
            usd_per_hour=one.usd_per_hour + one.entry_usd_per_hour / machines[name],
            churn=fleet.simulation.churn.get(name, Churn()),
        )
