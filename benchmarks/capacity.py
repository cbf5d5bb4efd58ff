"""The simulator against the live system: how busy a learner is that a small fleet feeds, predicted and measured.

Each setting runs live: real rollout workers with paced engines, the real queue, a real store, and a learner that takes
`--train` seconds for an update and publishes as late as the setting says (`benchmarks.fleet`). Then it is simulated,
with the same prompts' generation times, whole workers, and the times of publication and arrival as measured live.

    python -m benchmarks.capacity [--all] [--updates 20] [--train 2] [--json]

A setting takes about a minute and a half; without `--all` the first four of them run. Where `busy` is near 100 %, this
machine's processors could not keep the engines' pace, and the row says nothing.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.fleet.fleet import Fleet
from benchmarks.fleet.plan import Plan
from benchmarks.fleet.run import Run, running
from benchmarks.fleet.timed_learner import Pace, TimedLearner, timed
from benchmarks.fleet.trace import Trace
from benchmarks.laboratory import machine
from benchmarks.verdict import conclude
from echo_queue.capacity import bounds
from echo_queue.capacity.lengths import TAIL
from echo_queue.queue import RunRules
from echo_queue.simulation import Figures, Setting, simulate
from tests.workers.worker_harness import tensors_of

BATCH, CONCURRENT, SAMPLES = 8, 2, 2
STEP_S, LONGEST = 0.05, 240
WARM_UP = 5
DEADLINE_S = 300.0
HEAD = (
    "machines   S  κ   gen spread publish supply  fetch    live predicted  bounds  serial   lag predicted    busy\n"
    "                   T_train        T_train           s                                    live"
)
MEAN_ERROR, WORST_ERROR = 0.03, 0.07


class Case(NamedTuple):
    """A setting, with times in units of an update. `machines` hold two groups each."""

    machines: int
    s: int
    kappa: int = 1
    generation: float = 1.0
    spread: float = 0.6
    """Standard deviation of the logarithm of prompts' lengths."""
    publish: float = 0.1


CASES = (
    Case(5, 4),
    Case(4, 0),
    Case(5, 1, generation=0.5, publish=0.3),
    Case(3, 6),
    Case(5, 2),
    Case(5, 8, spread=1.0),
    Case(6, 4, 3),
    Case(6, 4, 2, publish=0.8),
    Case(5, 8, 7),
    Case(3, 3, generation=0.5),
    Case(2, 4, generation=0.5),
    Case(6, 0, generation=0.5),
    Case(6, 0, publish=0.5),
    Case(3, 1, generation=0.3),
    Case(5, 1, publish=0.5),
    Case(6, 3, generation=1.2),
    Case(6, 6, generation=1.5, spread=0.3),
    Case(4, 8, spread=1.0),
    Case(4, 4, publish=1.5),
    Case(5, 5, 4, publish=0.5),
    Case(3, 2, generation=0.4, spread=1.0),
    Case(5, 12, generation=1.2),
    Case(4, 6, 3, spread=0.3),
    Case(6, 2, 2, generation=0.7),
)


@dataclass(frozen=True)
class Row:
    """A setting's figures. `fetch_s`: the median time from a publication until a worker served it, as measured."""

    case: Case
    supply: float
    publish_s: float
    fetch_s: float
    live: float
    predicted: float
    bounds: float
    """Utilisation by the bounds with which `echo-queue plan` searches (`echo_queue/capacity/bounds.py`)."""
    serial: float
    """By the serial reading of ECHO-2's rule."""
    live_lag: float
    predicted_lag: float
    busy_share: float

    @property
    def error(self) -> float:
        return abs(self.live - self.predicted)


def trace_of(case: Case, train_s: float) -> Trace:
    """Returns a trace whose groups take the case's mean generation time."""
    trace = Trace(seed=1, samples=SAMPLES, longest=LONGEST, median=40.0, prompt_spread=case.spread, sample_spread=0.2)
    for _ in range(5):  # the limits of lengths bend the mean
        mean_s = statistics.fmean(work_of(trace, index) for index in range(400))
        median = trace.median * case.generation * train_s / mean_s
        trace = Trace(trace.seed, SAMPLES, LONGEST, median, case.spread, trace.sample_spread)
    return trace


def work_of(trace: Trace, index: int) -> float:
    """Returns the generation time of a prompt's group: that of its longest sample."""
    return max(trace.lengths(index)) * STEP_S


def measure(case: Case, updates: int, train_s: float) -> Row:
    trace = trace_of(case, train_s)
    settings = _settings(case)
    with tempfile.TemporaryDirectory() as name, running(Path(name), settings) as run:
        directory = Path(name)
        trace.write(directory / "trace.json")
        fleet = Fleet(run.harness.path, directory, Plan(directory / "trace.json", directory / "counts", STEP_S),
                      case.machines, boot_s=0.0)  # fmt: skip
        try:
            fleet.start()
            run.await_workers(case.machines)
            return _measure(case, run, trace, updates=updates, train_s=train_s)
        finally:
            fleet.end()


def _measure(case: Case, run: Run, trace: Trace, *, updates: int, train_s: float) -> Row:
    harness = run.harness
    harness.rules = RunRules.of(harness.config)
    harness.learner_begins()  # with the rules of the case, which `Run` leaves out
    tensors = tensors_of(Path(harness.config.base_model))
    harness.publish(0, tensors)
    run.submit((WARM_UP + updates + case.s + 3) * BATCH)
    with timed(run, Pace(train_s, case.publish * train_s, case.kappa), tensors) as learner:
        learner.until(WARM_UP, DEADLINE_S)
        learner.lags.clear()
        before, began = machine.now(), time.monotonic()
        learner.until(WARM_UP + updates, DEADLINE_S)
        live, busy = updates * train_s / (time.monotonic() - began), machine.busy_share(before)
        publish_s, fetch_s = statistics.fmean(learner.publish_s), _arrived_s(run)
        predicted = predict(case, trace, (publish_s, fetch_s), updates=updates, train_s=train_s)
        return _row(case, learner, predicted, _ruled(case, trace, predicted, train_s), live=live, busy_share=busy)


def _ruled(case: Case, trace: Trace, predicted: Figures, train_s: float) -> tuple[float, float]:
    """Returns the utilisation by the bounds, and by the serial rule, for the same supply and broadcast."""
    works = [work_of(trace, index) for index in range(predicted.groups)]
    batches = [max(works[first : first + BATCH]) for first in range(0, len(works), BATCH)]
    slow_s = statistics.fmean(batches) if case.s == 0 else float(np.quantile(works, TAIL))
    t_bcast_s = predicted.t_bcast_s
    way = bounds.Path(t_bcast_s + slow_s, t_bcast_s + statistics.fmean(works) / 2)
    bounded = bounds.utilisation(predicted.supply, case.s, case.kappa, train_s, way)
    return bounded, bounds.serial_utilisation(predicted.supply, case.kappa, t_train_s=train_s, t_bcast_s=t_bcast_s)


def _row(
    case: Case,
    learner: TimedLearner,
    predicted: Figures,
    ruled: tuple[float, float],
    *,
    live: float,
    busy_share: float,
) -> Row:
    publish_s = statistics.fmean(learner.publish_s)
    lag = statistics.fmean(learner.lags)
    fetch_s = predicted.t_bcast_s - publish_s
    return Row(
        case,
        supply=round(predicted.supply, 3),
        publish_s=round(publish_s, 3),
        fetch_s=round(fetch_s, 3),
        live=round(live, 4),
        predicted=round(predicted.utilisation, 4),
        bounds=round(ruled[0], 4),
        serial=round(ruled[1], 4),
        live_lag=round(lag, 3),
        predicted_lag=round(predicted.mean_lag, 3),
        busy_share=round(busy_share, 2),
    )


def _arrived_s(run: Run) -> float:
    """Returns the median of what the workers reported for the version that they serve."""
    beats = [worker.heartbeat for worker in run.harness.status().workers]
    return statistics.median([beat.arrived_ms / 1000 for beat in beats if beat and beat.arrived_ms >= 0] or [0.0])


def predict(case: Case, trace: Trace, t_bcast: tuple[float, float], *, updates: int, train_s: float) -> Figures:
    """Simulates the case. `t_bcast`: the seconds of a publication, and until workers serve it then."""
    publish_s, fetch_s = t_bcast
    pool = {"name": "m", "machines": case.machines, "concurrent_groups": CONCURRENT, "fetch_s": fetch_s}
    setting = Setting.model_validate(
        {
            "simulation": {"updates": updates, "warm_up": WARM_UP},
            "learner": {"batch_groups": BATCH, "t_train_s": train_s, "publish_s": publish_s},
            "staleness": {"s": case.s, "kappa": case.kappa},
            "generation": {"mean_s": case.generation * train_s},
            "pools": [pool],
        }
    )
    return simulate(setting, work=partial(work_of, trace))


def _settings(case: Case) -> dict[str, dict[str, Any]]:
    return {
        "model": {"max_new_tokens": LONGEST, "max_prompt_tokens": 64},
        "rollout": {
            "group_size": SAMPLES,
            "concurrent_groups": CONCURRENT,
            "workers": case.machines,
            "temperature": 1.0,
        },
        "learner": {"batch_groups": BATCH},
        "staleness": {"s": case.s, "kappa": case.kappa},
        "queue": {"lease_s": 30.0, "stall_deadline_s": DEADLINE_S},
        "telemetry": {"heartbeat_s": 1.0},
    }


def targets(rows: Sequence[Row]) -> dict[str, bool]:
    errors = [row.error for row in rows]
    return {
        f"the prediction misses utilisation by {MEAN_ERROR:.0%} of the time on average": (
            statistics.fmean(errors) <= MEAN_ERROR
        ),
        f"and by {WORST_ERROR:.0%} at worst": max(errors) <= WORST_ERROR,
    }


def line(row: Row) -> str:
    case = row.case
    return (
        f"{case.machines:>8} {case.s:>3} {case.kappa:>2} {case.generation:>5.1f} {case.spread:>6.1f}"
        f" {case.publish:>7.1f} {row.supply:>6.2f} {row.fetch_s:>6.2f} {row.live:>7.1%} {row.predicted:>9.1%}"
        f" {row.bounds:>7.1%} {row.serial:>7.1%}"
        f" {row.live_lag:>5.2f} {row.predicted_lag:>9.2f} {row.busy_share:>7.0%}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", action="store_true", help=f"all {len(CASES)} settings, in about 40 minutes")
    parser.add_argument("--updates", type=int, default=20)
    parser.add_argument("--train", type=float, default=2.0, help="seconds of an update")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    print(HEAD, flush=True)
    rows = []
    for case in CASES if options.all else CASES[:4]:
        rows.append(measure(case, options.updates, options.train))
        print(line(rows[-1]), flush=True)
    return conclude(rows, targets(rows), as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
