"""The simulator's speed on a large fleet, and the agreement of its queue with the real one over many settings.

- *speed*: 10,000 machines that generate a million groups in about a day, some of which are lost.
- *agreement*: settings drawn from a seed, of all kinds, with the queue in memory and with the real one.

    python -m benchmarks.simulation [--settings 12] [--seed 0] [--json]
"""

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.rows import Rows
from benchmarks.verdict import conclude
from echo_queue.capacity.simulation import Setting, simulate
from tests.capacity.simulation.real_queue import simulate_really

MACHINES, BATCH, UPDATES, WARM_UP = 10_000, 512, 1_950, 10
LARGE = Setting.model_validate(
    {
        "simulation": {"updates": UPDATES, "warm_up": WARM_UP},
        "learner": {"batch_groups": BATCH, "t_train_s": 42.0, "publish_s": 10.0},
        "staleness": {"s": 64},
        "generation": {"mean_s": 700.0, "longest_s": 2400.0},
        "pools": [
            {
                "name": "spot",
                "machines": MACHINES,
                "concurrent_groups": 1,
                "fetch_s": 30.0,
                "boot_s": 180.0,
                "losses_per_machine_hour": 0.02,
                "bursts_per_hour": 0.2,
                "burst_share": 0.02,
            }
        ],
    }
)
SPEED_S = 300.0
UTILISATION, LAG = 0.01, 0.1


@dataclass(frozen=True)
class Speed:
    """One simulation of the large fleet. `seconds`: processor time of this process."""

    seconds: float
    simulated_h: float
    groups: int
    utilisation: float
    machines_lost: int


@dataclass(frozen=True)
class Pair:
    """The same setting with both queues. `memory`, `real`: utilisation and mean lag; times: of the wall."""

    s: int
    kappa: int
    memory: tuple[float, float]
    real: tuple[float, float]
    memory_s: float
    real_s: float


@dataclass(frozen=True)
class Measured:
    speed: Speed
    pairs: Sequence[Pair]


def measure_speed() -> Speed:
    began = time.process_time()
    figures = simulate(LARGE)
    seconds = time.process_time() - began
    hours = figures.seconds / 3600
    return Speed(round(seconds, 1), round(hours, 2), figures.groups, figures.utilisation, figures.machines_lost)


def drawn(count: int, seed: int) -> Iterator[Setting]:
    """Yields settings with times in units of an update of 10 s."""
    draw = np.random.default_rng(seed)
    for _ in range(count):
        s, batch, generation = int(draw.integers(0, 9)), int(draw.choice([4, 8, 24])), float(draw.uniform(0.3, 2.5))
        groups = int(draw.choice([1, 2, 4]))
        pool: dict[str, Any] = {
            "name": "a",
            "machines": max(1, round(float(draw.uniform(0.7, 1.6)) * batch * generation / groups)),
            "concurrent_groups": groups,
            "fetch_s": float(draw.uniform(0, 12)),
            "boot_s": 20.0,
            "progress_s": float(draw.choice([0.0, 2.0])),
            "notice": bool(draw.integers(2)),
            "losses_per_machine_hour": float(draw.choice([0.0, 20.0])),
            "stragglers": float(draw.choice([0.0, 0.2])),
        }
        yield Setting.model_validate(
            {
                "simulation": {"updates": 60, "warm_up": 10},
                "learner": {"batch_groups": batch, "t_train_s": 10.0, "publish_s": float(draw.uniform(0, 5))},
                "staleness": {
                    "s": s,
                    "kappa": int(draw.integers(1, s + 2)),
                    "pace": bool(draw.integers(2)),
                    "late": str(draw.choice(["requeue", "wait"])),
                    "late_deadline_s": 15.0,
                },
                "generation": {"mean_s": 10 * generation, "tail": str(draw.choice(["log-normal", "pareto"]))},
                "queue": {"lease_s": 16.0},
                "pools": [pool],
            }
        )


def compare(setting: Setting, seed: int) -> Pair:
    began = time.monotonic()
    memory = simulate(setting, seed)
    between = time.monotonic()
    real = simulate_really(setting, seed)
    return Pair(
        setting.staleness.s,
        setting.kappa,
        (memory.utilisation, memory.mean_lag),
        (real.utilisation, real.mean_lag),
        round(between - began, 2),
        round(time.monotonic() - between, 2),
    )


def targets(measured: Measured) -> dict[str, bool]:
    pairs = measured.pairs
    return {
        f"a million groups on {MACHINES:,} machines take at most {SPEED_S:g} s": measured.speed.seconds <= SPEED_S,
        f"both queues agree within {UTILISATION:.0%} of the time": all(
            abs(one.memory[0] - one.real[0]) <= UTILISATION for one in pairs
        ),
        f"and within {LAG} of mean lag": all(abs(one.memory[1] - one.real[1]) <= LAG for one in pairs),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--settings", type=int, default=12)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows, speeds, pairs = Rows(), list[Speed](), list[Pair]()
    with rows.row(f"{MACHINES:,} machines"):
        speeds.append(speed := measure_speed())
        print(
            f"{speed.groups:,} groups of {speed.simulated_h:g} h on {MACHINES:,} machines, {speed.machines_lost:,} of "
            f"them lost: {speed.seconds:g} s; learner {speed.utilisation:.1%} busy"
        )
    for number, setting in enumerate(drawn(options.settings, options.seed)):
        with rows.row(f"setting {number}"):
            pairs.append(one := compare(setting, number))
            print(
                f"S = {one.s}, κ = {one.kappa}:"
                f" in memory {one.memory[0]:.2%}, lag {one.memory[1]:.3f} in {one.memory_s:g} s;"
                f" real {one.real[0]:.2%}, lag {one.real[1]:.3f} in {one.real_s:g} s"
            )
    if rows.lost:
        return conclude([*speeds, *pairs], rows.promises, as_json=options.json)
    measured = Measured(speeds[0], pairs)
    return conclude(measured, targets(measured), as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
