"""The chosen set on the simulated clock of `simulation/`: its figures stand beside those of the bounds.

A group's generation time is drawn as the longest of its samples (`lengths.py`). A machine holds as many groups as it
has in flight on average, by Little's law, and is as fast as makes its rate that of the plan. Interruptions come one by
one and without notice.
"""

import random
from dataclasses import dataclass

from echo_queue.capacity.bounds.offers import generation, lengths_of
from echo_queue.capacity.fleet_file import Fleet
from echo_queue.capacity.plan.outcome import Outcome, Simulated
from echo_queue.capacity.plan.planning import Setting as Planned
from echo_queue.capacity.simulation import Setting, simulate

GROUPS = 3_000
"""Groups of the updates that are counted, as far as `FEWEST` updates allow: some seconds of computing."""
FEWEST, MOST = 20, 100
WARM_UP = 0.3
"""Updates before those that are counted, as a share of them."""
SEED = 1


@dataclass(frozen=True)
class GroupTimes:
    """Generation times of groups by prompt, in units of their mean, as the longest of independent samples."""

    fleet: Fleet
    unit: float

    def __call__(self, prompt: int) -> float:
        share = random.Random(f"{SEED} {prompt}").random()
        size = self.fleet.run.group_size
        return lengths_of(self.fleet).quantile(max(share, 1e-9) ** (1 / size)) / self.unit


def simulated(fleet: Fleet, chosen: Outcome) -> Simulated | None:
    """Returns the figures of a simulation of this set; None if it has no machines."""
    if not chosen.machines:
        return None
    run = fleet.run
    updates = max(FEWEST, min(MOST, GROUPS // run.groups_per_update))
    setting = Setting.model_validate(
        {
            "simulation": {"updates": updates, "warm_up": round(WARM_UP * updates)},
            "learner": {
                "batch_groups": run.groups_per_update,
                "t_train_s": fleet.learner.t_train_s.value,
                "usd_per_hour": fleet.learner.price.usd_per_hour,
            },
            "staleness": {"s": chosen.s, "kappa": chosen.kappa},
            "generation": {"mean_s": 1.0},
            "pools": [_pool(fleet, chosen, name) for name in chosen.machines],
        }
    )
    unit = lengths_of(fleet).mean_of_longest(run.group_size)
    found = simulate(setting, SEED, work=GroupTimes(fleet, unit))
    return Simulated(
        updates=updates,
        utilisation=found.utilisation,
        mean_lag=found.mean_lag,
        worst_lag=found.worst_lag,
        usd_per_update=found.usd_per_update or 0.0,
        stale_share=found.stale_share,
        lost_share=found.lost_share,
    )


def _pool(fleet: Fleet, chosen: Outcome, name: str) -> dict[str, object]:
    pool, made = fleet.pools[name], generation(fleet, fleet.pools[name])
    rate = pool.gpus * made.groups_per_s * fleet.run.accepted.value
    groups = max(1, round(rate * made.mean_s))
    offers = {one.name: one for one in Planned(fleet, chosen.s, chosen.form, chosen.peers).offers(chosen.kappa)}
    further_s = (chosen.t_bcast_s or 0.0) - max(offers[used].broadcast_s for used in chosen.machines)
    return {
        "name": name,
        "machines": chosen.machines[name],
        "concurrent_groups": groups,
        "speed": rate / groups,
        "fetch_s": offers[name].broadcast_s + further_s,
        "boot_s": pool.boot_s.value,
        "usd_per_hour": offers[name].usd_per_hour + offers[name].entry_usd_per_hour / chosen.machines[name],
        "progress_s": fleet.run.progress_s or 0.0,
        "losses_per_machine_hour": pool.interruptions_per_hour.value,
    }
