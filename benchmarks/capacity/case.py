"""The settings that are compared, and what the simulator, the bounds and ECHO-2's rule say about them."""

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from benchmarks.fleet.trace import Trace
from echo_queue.capacity.bounds import utilisation as bounds
from echo_queue.capacity.bounds.lengths import longest_shares
from echo_queue.capacity.simulation import Figures, Scenario, simulate
from echo_queue.capacity.simulation.learner import LearnerTimes
from echo_queue.capacity.simulation.world import SimulatedPool
from echo_queue.queue import RunRules

BATCH, SAMPLES = 8, 2
STEP_S, LONGEST = 0.08, 320
WARM_UP = 3
LEAST_S = 3
"""The least S of settings by which the bounds are judged."""
PLANNED = 0.97
LONG_RUN = 300
"""Updates after which the few groups that come late have come about as often as they do on average."""
BOUNDS = (0, 0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4, 5, 5, 6, 6, 8, 8)
"""S of the drawn settings."""


@dataclass(frozen=True)
class Case:
    """A setting, with times in units of an update. Each of the `machines` holds `concurrent` groups.

    `generation`: mean time of a group. `spread`: standard deviation of the logarithm of prompts' lengths. `publish`:
    time of a publication.
    """

    machines: int
    s: int
    kappa: int
    generation: float
    spread: float
    publish: float
    concurrent: int = 2
    seed: int = 1
    """The seed of the prompts' lengths."""


class Speeds(NamedTuple):
    """The speeds of a run, as measured: seconds of a publication, and from then until workers serve it.

    `late_share`: the share of their time that engines lost because processors were busy.
    """

    publish_s: float
    fetch_s: float
    late_share: float = 0.0


class Prediction(NamedTuple):
    """The predictions for a setting. `simulated` is of the updates that ran live.

    `bounded`: utilisation by the bounds with which `echo-queue plan` searches, and `serial` by ECHO-2's rule. Both say
    what many updates are like, and so does `long_run`: the utilisation of a simulation of `LONG_RUN` updates.
    """

    simulated: Figures
    long_run: float
    bounded: float
    serial: float


def planned(seed: int) -> tuple[Case, Case]:
    """Returns a setting with the machines that the bounds want for a learner that is busy, and with 0.8 of them."""
    case = Case(1, 6, 1, generation=1.0, spread=0.3, publish=0.1, seed=seed)
    needed = bounds.supply_needed(PLANNED, case.s, case.kappa, 1.0, bounds.Path(case.publish + 2.2 * case.generation))
    machines = -int(-needed * BATCH * case.generation // case.concurrent)
    return replace(case, machines=machines), replace(case, machines=round(0.8 * machines))


def drawn(count: int, seed: int) -> Iterator[Case]:
    """Yields settings of all kinds, the same ones for the same seed."""
    draw = np.random.default_rng(seed)
    for number in range(count):
        s, concurrent = BOUNDS[number % len(BOUNDS)], int(draw.choice([2, 4]))
        generation, supply = float(draw.uniform(0.4, 1.4)), float(draw.uniform(0.75, 1.5))
        yield Case(
            machines=max(1, round(supply * BATCH * generation / concurrent)),
            s=s,
            kappa=int(draw.choice([1, 1, max(1, s - 1)])),
            generation=round(generation, 2),
            spread=float(draw.choice([0.3, 0.6, 1.0])),
            publish=round(float(draw.uniform(0.05, 1.2)), 2),
            concurrent=concurrent,
            seed=1000 * seed + number,
        )


def trace_of(case: Case, train_s: float) -> Trace:
    """Returns a trace whose groups take the case's mean generation time."""
    trace = Trace(case.seed, SAMPLES, LONGEST, median=40.0, prompt_spread=case.spread, sample_spread=0.2)
    return trace.taking(case.generation * train_s / STEP_S)


def work_of(trace: Trace, index: int) -> float:
    """Returns the generation time of a prompt's group in seconds."""
    return trace.steps(index) * STEP_S


def predict(case: Case, trace: Trace, speeds: Speeds, *, updates: int, train_s: float) -> Prediction:
    """Returns what is said about a setting whose weights and engines are as fast as `speeds` says."""

    def work(index: int) -> float:
        return work_of(trace, index) / (1 - speeds.late_share)

    simulated = simulate(_scenario(case, speeds, work, updates=updates, train_s=train_s))
    long_run = simulate(_scenario(case, speeds, work, updates=LONG_RUN, train_s=train_s))
    t_bcast_s = speeds.publish_s + speeds.fetch_s
    works = [work(index) for index in range((WARM_UP + LONG_RUN) * BATCH)]
    path = path_of(works, t_bcast_s, case.s)
    return Prediction(
        simulated,
        long_run.utilisation,
        bounds.utilisation(long_run.supply, case.s, case.kappa, train_s, path),
        bounds.serial_utilisation(long_run.supply, case.kappa, t_train_s=train_s, t_bcast_s=t_bcast_s),
    )


def path_of(works: Sequence[float], t_bcast_s: float, s: int) -> bounds.Path:
    """Returns the way from an update to groups that take these times."""
    slowest_s = np.quantile(works, longest_shares(bounds.window_groups(s, BATCH)))
    ways_s = tuple(float(t_bcast_s + slow_s) for slow_s in slowest_s)
    return bounds.Path(statistics.fmean(ways_s), t_bcast_s + statistics.fmean(works) / 2, ways_s)


def _scenario(case: Case, speeds: Speeds, work: Callable[[int], float], *, updates: int, train_s: float) -> Scenario:
    steps_s = (1.0,) * case.concurrent
    pool = SimulatedPool("m", case.machines, steps_s, fetch_s=speeds.fetch_s, progress_s=2.0)
    rules = RunRules(s=case.s, batch=BATCH, kappa=case.kappa, longest_first=False)
    times = LearnerTimes(train_s, speeds.publish_s, case.kappa)
    return Scenario(rules, times, [pool], work, updates, WARM_UP)
