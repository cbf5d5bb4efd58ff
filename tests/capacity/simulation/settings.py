"""Small settings of a simulation, in times of an update (10 s)."""

from typing import Any

from echo_queue.capacity.simulation import Setting

T_TRAIN_S = 10.0


def setting(
    s: int = 4,
    kappa: int = 1,
    *,
    generation: float = 0.5,
    supply: float = 1.2,
    batch: int = 8,
    updates: int = 100,
    warm_up: int = 20,
    pool: dict[str, Any] | None = None,
    **sections: dict[str, Any],
) -> Setting:
    """Returns a setting with one pool of machines that hold one group each. `generation`: the mean of the times."""
    machines = max(1, round(supply * batch * generation))
    values = {
        "simulation": {"updates": updates, "warm_up": warm_up},
        "learner": {"batch_groups": batch, "t_train_s": T_TRAIN_S, "publish_s": 0.5},
        "staleness": {"s": s, "kappa": kappa},
        "generation": {"mean_s": generation * T_TRAIN_S},
        "queue": {"lease_s": 16.0},
        "pools": [{"name": "a", "machines": machines, "concurrent_groups": 1, "fetch_s": 3.0} | (pool or {})],
    }
    for section, more in sections.items():
        values[section] = values[section] | more
    return Setting.model_validate(values)
