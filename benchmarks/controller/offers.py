"""The fleet file of the benchmark: three pools of which the cheapest suffices, and what the cheapest set costs."""

from collections.abc import Mapping
from typing import Any

from echo_queue.capacity.fleet_file import Fleet
from echo_queue.capacity.plan.planning import Setting
from echo_queue.capacity.plan.search import cheapest

TRAIN_S, BATCH, SAMPLES, S, KAPPA = 6.4, 8, 2, 16, 2
CONCURRENT = 4
"""Groups that a machine generates at once."""
STEPS = 40
"""Mean number of steps of a group."""
STEP_S: Mapping[str, float] = {"spot": 0.2, "fast": 0.1, "rest": 0.2}
"""Seconds of an engine's step, by pool: a machine makes half a group in a second, and a fast one makes one."""
USD: Mapping[str, float] = {"spot": 1.0, "fast": 2.3, "rest": 1.4}
MOST: Mapping[str, int] = {"spot": 4, "fast": 4, "rest": 4}
"""The most machines of a pool."""
CHEAPEST = "spot"
LEARNER_USD, POOLS_USD, MACHINES = 20.0, 16.0, 5
"""The learner's price, and the caps of all pools together: USD per hour, and machines."""
BOOT_S, EVERY_S, CALM_S, MEASURE_S = 20.0, 2.0, 20.0, 60.0


def fleet_file() -> Fleet:
    """Returns what a user would write of machines that are as fast as the engines are paced."""
    return Fleet.model_validate(
        {
            "format": 1,
            "name": "live",
            "run": {"s": S, "kappa": KAPPA, "groups_per_update": BATCH, "group_size": SAMPLES, "accepted": _assumed(1)},
            "lengths": {"mean_tokens": _assumed(STEPS), "spread": _assumed(0), "most_tokens": STEPS},
            "learner": {"gpus": 1, "price": _price(LEARNER_USD), "t_train_s": _assumed(TRAIN_S), **_LINK},
            "weights": {"parameters": 1_000_000, "change": _assumed(0.05)},
            "pools": {name: _pool(name) for name in USD},
            "budget": {"usd_per_hour": LEARNER_USD + POOLS_USD},
            "controller": {
                "machines": MACHINES,
                "every_s": EVERY_S,
                "calm_s": CALM_S,
                "measure_s": MEASURE_S,
                "silent_s": 20.0,
                "rest_s": 20.0,
                "leave_s": 10.0,
            },
        }
    )


def optimum_usd(train_s: float, usd: Mapping[str, float]) -> float:
    """Returns what the cheapest pools cost per hour that the plan finds, for a learner of that speed and these prices.

    Pools without a price have no machines.
    """
    fleet = fleet_file()
    learner = fleet.learner.model_copy(update={"t_train_s": fleet.learner.t_train_s.times(train_s / TRAIN_S)})
    setting = Setting(fleet.model_copy(update={"learner": learner}), S, fleet.weights.form, fleet.weights.peers)
    offers = [one._replace(usd_per_hour=usd[one.name]) for one in setting.offers(KAPPA) if one.name in usd]
    chosen = cheapest([(offers, setting.goal(KAPPA, fleet.run.utilisation, budget=False))])
    if chosen is None:
        raise RuntimeError("these pools keep no learner busy")
    return chosen.usd_per_hour


def _pool(name: str) -> dict[str, Any]:
    rate = SAMPLES * CONCURRENT / STEP_S[name]
    return {
        "gpu": "none",
        "cloud": "here",
        "region": "here",
        "max_machines": MOST[name],
        "price": _price(USD[name]),
        "tokens_per_s": {STEPS: _assumed(rate)},
        "samples_at_once": SAMPLES * CONCURRENT,
        "interruptions_per_hour": _assumed(0),
        "boot_s": _assumed(BOOT_S),
        **_LINK,
    }


def _assumed(value: float) -> dict[str, Any]:
    return {"assumed": value, "why": "so the engines are paced"}


def _price(usd: float) -> dict[str, Any]:
    return {"usd_per_hour": usd, "on": "2026-11-23", "source": "chosen for the benchmark"}


_LINK = {"link_gbit": _assumed(10.0)}
