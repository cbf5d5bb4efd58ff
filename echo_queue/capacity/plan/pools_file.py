"""The pools file that infra/terraform/modules/fleet_plan reads, as a plan writes it."""

from collections.abc import Mapping
from typing import Any

from echo_queue.capacity.fleet_file import CLOUDS, Fleet
from echo_queue.capacity.plan.document import PlannedSet

FORMAT = 1


def pools_file(fleet: Fleet, chosen: PlannedSet) -> Mapping[str, Any]:
    """Returns the file's content: every pool with a price in a cloud that Terraform knows, with its machines, or none.

    Pools that the plan leaves empty are there with their limits, so that a controller may turn to them.
    """
    pools = {
        name: {
            "cloud": pool.cloud,
            "region": pool.region,
            "instance_types": list(pool.instance_types),
            "gpus": pool.gpus,
            "machines": chosen.machines.get(name, 0),
            "max_machines": pool.max_machines,
            "usd_per_hour": pool.price.usd_per_hour,
        }
        for name, pool in fleet.pools.items()
        if pool.price and pool.cloud in CLOUDS
    }
    return {"format": FORMAT, "pools": pools}


def elsewhere(fleet: Fleet, chosen: PlannedSet) -> tuple[str, ...]:
    """Returns the pools in use that the file cannot hold, because they are in other clouds."""
    return tuple(name for name in chosen.machines if fleet.pools[name].cloud not in CLOUDS)
