"""The simulator's speed on a large fleet, and the agreement of its queue with the real one over many scenarios.

- *speed*: 10,000 machines that generate a million groups in about a day, some of which are lost.
- *agreement*: scenarios drawn from a seed, of all kinds, with the queue in memory and with the real one.

    python -m benchmarks.simulation [--scenarios 12] [--seed 0] [--json]
"""

import argparse
import math
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.rows import Rows
from benchmarks.verdict import conclude
from echo_queue.capacity.bounds.lengths import Lengths
from echo_queue.capacity.fleet_file import Churn
from echo_queue.capacity.simulation import Scenario, simulate
from echo_queue.capacity.simulation.events import GroupWork
from echo_queue.capacity.simulation.learner import LearnerTimes
from echo_queue.capacity.simulation.world import SimulatedPool
from echo_queue.queue import RunRules
from tests.capacity.simulation.real_queue import simulate_really

MACHINES, BATCH, UPDATES, WARM_UP = 10_000, 512, 1_950, 10
LARGE = Scenario(
    RunRules(s=64, batch=BATCH, longest_first=False),
    LearnerTimes(42.0, publish_s=10.0, kappa=1),
    [
        SimulatedPool(
            "spot",
            MACHINES,
            steps_s=(1.0,),
            fetch_s=30.0,
            boot_s=180.0,
            progress_s=2.0,
            losses_per_hour=0.02,
            churn=Churn(bursts_per_hour=0.2, burst_share=0.02),
        )
    ],
    GroupWork(Lengths(700.0, 0.6, 2400.0), 1, seed=0),
    UPDATES,
    WARM_UP,
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
    """The same scenario with both queues. `memory`, `real`: utilisation and mean lag; times are those of the wall."""

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


def drawn(count: int, seed: int) -> Iterator[Scenario]:
    """Yields scenarios with updates of 10 s; the work of groups is log-normal, or has Pareto's tail."""
    draw = np.random.default_rng(seed)
    for number in range(count):
        s, batch, generation = int(draw.integers(0, 9)), int(draw.choice([4, 8, 24])), float(draw.uniform(0.3, 2.5))
        groups, kappa = int(draw.choice([1, 2, 4])), int(draw.integers(1, s + 2))
        churn = Churn(notice=bool(draw.integers(2)), stragglers=float(draw.choice([0.0, 0.2])))
        pool = SimulatedPool(
            "a",
            max(1, round(float(draw.uniform(0.7, 1.6)) * batch * generation / groups)),
            steps_s=(1.0,) * groups,
            fetch_s=float(draw.uniform(0, 12)),
            boot_s=20.0,
            progress_s=float(draw.choice([0.0, 2.0])),
            losses_per_hour=float(draw.choice([0.0, 20.0])),
            churn=churn,
        )
        rules = RunRules(
            s=s,
            batch=batch,
            kappa=kappa,
            lease_ms=16_000,
            pace=bool(draw.integers(2)),
            late="wait" if draw.integers(2) else "requeue",
            late_deadline_ms=15_000,
            longest_first=False,
        )
        times = LearnerTimes(10.0, publish_s=float(draw.uniform(0, 5)), kappa=kappa)
        tail = (6 * generation * (1 + draw.pareto(2.5, 1_000))).tolist() if draw.integers(2) else ()
        work = GroupWork(Lengths(10 * generation, 0.6, math.inf), 1, number, tail)
        yield Scenario(rules, times, [pool], work, updates=60, warm_up=10, seed=number)


def compare(scenario: Scenario) -> Pair:
    began = time.monotonic()
    memory = simulate(scenario)
    between = time.monotonic()
    real = simulate_really(scenario)
    return Pair(
        scenario.rules.s,
        scenario.times.kappa,
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
    parser.add_argument("--scenarios", type=int, default=12)
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
    for number, scenario in enumerate(drawn(options.scenarios, options.seed)):
        with rows.row(f"scenario {number}"):
            pairs.append(one := compare(scenario))
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
