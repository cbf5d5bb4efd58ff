"""The fleet of a storm: two pools of forked workers, which a real controller rents by a fleet file that changes.

The controller's patience is cut to seconds, so that a storm of a minute has launches that fail, silent machines,
back-off and new leaders in it. The caps never change: they must hold at any instant.
"""

import random
from collections.abc import Iterator
from dataclasses import replace
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

from echo_queue.atomic_file import write_atomically
from echo_queue.config import toml_text
from echo_queue.file_lock import is_locked
from echo_queue.fleet import accounts, controller, opening
from echo_queue.fleet.drivers import LocalDriver
from echo_queue.fleet.drivers.local import Launch
from tests.faults.history import machines
from tests.faults.history.machines import Caps
from tests.faults.storm.settings import POOLS
from workers.shutdown import Shutdown

FILE = "fleet.toml"
PRICES = dict(zip(POOLS, (1.0, 2.0), strict=True))
CAPS = Caps(machines=3, usd_per_hour=5.0, prices=PRICES)
LEARNER_USD_PER_HOUR = 1.0
LEAD_S, LAUNCH_S, SETBACK_S, ANSWER_S = 2.0, 4.0, 1.0, 3.0
LEAST_GROUPS_PER_S, MOST_GROUPS_PER_S = 80.0, 600.0
"""What a machine is said to give: so many that one is enough for the learner, and so few that the caps are too low."""
TOKENS = 100


def write_file(directory: Path, draw: random.Random) -> None:
    """Writes the fleet file whole, with a supply of each pool's machines that is drawn anew: demand changes with it."""
    lowest, highest = LEAST_GROUPS_PER_S, MOST_GROUPS_PER_S
    supplies = {pool: lowest * (highest / lowest) ** draw.random() for pool in POOLS}
    text = f'format = 1\nname = "storm"\n\n{toml_text.written(_settings(supplies))}'
    write_atomically(directory / FILE, text.encode(), "fleet file")


def hasten(launch: Launch) -> None:
    """Makes a controller of this process start machines by `launch`, and lose its patience within seconds."""
    opening.LocalDriver = partial(LocalDriver, launch=launch)  # type: ignore[misc,assignment]
    controller.TERM_LEAST_S, accounts.LAUNCH_MORE_S, opening.DEADLINE_S = LEAD_S, LAUNCH_S, ANSWER_S
    limits_of = controller.limits_of
    controller.limits_of = lambda fleet: replace(limits_of(fleet), setback_s=SETBACK_S, longest_setback_s=4 * SETBACK_S)


def begin(directory: Path, name: str, pool: str) -> None:
    """Notes that this machine has begun, and which ones are alive beside it."""
    machines.note(directory, machines.BEGAN, name, pool, list(alive(directory)))


def alive(directory: Path) -> Iterator[str]:
    """Yields the pool of each machine whose process lives. The number of one that is gone may be another's by now."""
    from tests.faults.storm.forked_roles import process_of

    for lock in (directory / "run" / "fleet").glob("*/*/lock"):
        pool, number = lock.parts[-3], lock.read_text().strip()
        process = process_of(int(number)) if number else None
        if is_locked(lock) and process and process.name == pool and process.state not in "ZX":
            yield pool


class MachineShutdown(Shutdown):
    """A shutdown that notes when the machine is told to end by its place, and not through the queue."""

    def __init__(self, directory: Path, name: str, pool: str) -> None:
        super().__init__()
        self._note = partial(machines.note, directory, machines.ENDED, name, pool)

    def leave(self, why: str, *words: Any, **named: Any) -> None:
        if why == "SIGTERM":
            self._note()
        super().leave(why, *words, **named)


def _settings(supplies: dict[str, float]) -> dict[str, dict[str, Any]]:
    """The tables of the fleet file, for machines that give so many groups per second."""
    learner_price = _price(LEARNER_USD_PER_HOUR)
    return {
        "run": {"s": 0, "groups_per_update": 128, "group_size": 1, "accepted": _assumed(1)},
        "lengths": {"mean_tokens": _assumed(TOKENS), "spread": _assumed(0), "most_tokens": TOKENS},
        "learner": {"gpus": 1, "price": learner_price, "t_train_s": _assumed(1), "link_gbit": _assumed(1000)},
        "weights": {"parameters": 1000, "change": _assumed(0.01)},
        "prices": {"old": "mark"},
        "budget": {"usd_per_hour": LEARNER_USD_PER_HOUR + CAPS.usd_per_hour},
        "pools": {pool: _pool(PRICES[pool], supply) for pool, supply in supplies.items()},
        "controller": {
            "machines": CAPS.machines,
            "every_s": 0.4,
            "calm_s": 0.0,
            "measure_s": 1e6,  # what a machine gives is drawn, and not measured
            "silent_s": 1.5,
            "lost_s": 5.0,
            "rest_s": 1.5,
            "leave_s": 1.5,
        },
    }


def _pool(usd: float, supply: float) -> dict[str, Any]:
    return {
        "gpu": "none",
        "cloud": "here",
        "region": "here",
        "max_machines": CAPS.machines,
        "price": _price(usd),
        "tokens_per_s": {str(TOKENS): _assumed(TOKENS * supply)},
        "samples_at_once": 1,
        "interruptions_per_hour": _assumed(0),
        "boot_s": _assumed(1),
        "link_gbit": _assumed(1000),
    }


def _assumed(value: float) -> dict[str, Any]:
    return {"assumed": value, "why": "a storm"}


def _price(usd: float) -> dict[str, Any]:
    return {"usd_per_hour": usd, "on": str(date.today()), "source": "a storm"}
