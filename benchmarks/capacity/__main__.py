"""Compares the simulator, the bounds and ECHO-2's rule with live fleets.

    python -m benchmarks.capacity [--settings 24] [--seed 1] [--at-once 6] [--seconds 120] [--train 4] [--json]

The bounds and ECHO-2's rule predict many updates, so a simulation of many (`long run`) stands beside that of the live
ones. Settings are drawn from the seed. Two more have the machines that the bounds plan for a busy learner, and 0.8 of
them. `late` is the share of their time that engines lost because this machine's processors were busy. The predictions
are given it, as they are given the times of publication and arrival: they take what workers really do, and predict the
run.
"""

import argparse
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from threading import Barrier

from transformers.utils.logging import disable_progress_bar

from benchmarks.capacity.case import LEAST_S, PLANNED, Case, drawn, planned
from benchmarks.capacity.live import Row, measure
from benchmarks.rows import Rows
from benchmarks.verdict import conclude

HEAD = (
    "machines   S  κ   gen spread publish supply  fetch    live simulated long run  bounds  serial   lag simulated"
    "   late\n"
    "                   T_train       T_train            s                                  live"
)
MEAN_ERROR, WORST_ERROR = 0.03, 0.07
BOUNDS_MEAN, BOUNDS_WORST = 0.03, 0.10


def line(row: Row) -> str:
    case = row.case
    return (
        f"{case.machines:>5}×{case.concurrent:<2} {case.s:>3} {case.kappa:>2} {case.generation:>5.2f}"
        f" {case.spread:>6.1f} {case.publish:>7.2f} {row.supply:>6.2f} {row.fetch_s:>6.2f}"
        f" {row.live:>7.1%} {row.simulated:>9.1%} {row.long_run:>8.1%} {row.bounded:>7.1%} {row.serial:>7.1%}"
        f" {row.live_lag:>5.2f} {row.simulated_lag:>9.2f} {row.late_share:>6.1%}"
    )


def errors(rows: Sequence[Row], one: str, other: str) -> tuple[float, float]:
    """Returns the mean and the largest difference of two of the rows' figures, as shares of the learner's time."""
    found = [abs(getattr(row, one) - getattr(row, other)) for row in rows]
    return statistics.fmean(found), max(found)


def targets(rows: Sequence[Row], busy: Row, short: Row) -> dict[str, bool]:
    """`busy`, `short`: the row of the planned machines, and that of 0.8 of them."""
    simulated = errors(rows, "live", "simulated")
    bounded = errors([row for row in rows if row.case.s >= LEAST_S], "bounded", "long_run")
    return {
        f"the simulator misses live utilisation by {MEAN_ERROR:.0%} on average": simulated[0] <= MEAN_ERROR,
        f"and by {WORST_ERROR:.0%} at worst": simulated[1] <= WORST_ERROR,
        f"the bounds miss a long simulation by {BOUNDS_MEAN:.0%} on average, S ≥ {LEAST_S}": bounded[0] <= BOUNDS_MEAN,
        f"and by {BOUNDS_WORST:.0%} at worst": bounded[1] <= BOUNDS_WORST,
        f"with the planned machines the learner is {PLANNED:.0%} busy": busy.live >= PLANNED,
        f"with 0.8 of them as simulated, to {WORST_ERROR:.0%}": abs(short.live - short.simulated) <= WORST_ERROR,
    }


def summary(rows: Sequence[Row]) -> str:
    """Returns the mean and the largest error of each prediction, in points."""
    far = [row for row in rows if row.case.s >= LEAST_S]
    pairs = [
        (f"simulator – live, {len(rows)} settings", errors(rows, "live", "simulated")),
        (f"bounds – long simulation, {len(far)} with S ≥ {LEAST_S}", errors(far, "bounded", "long_run")),
        (f"bounds – simulator, {len(far)} with S ≥ {LEAST_S}", errors(far, "bounded", "simulated")),
        (f"bounds – live, {len(far)} with S ≥ {LEAST_S}", errors(far, "bounded", "live")),
        (f"ECHO-2's rule – live, {len(far)} with S ≥ {LEAST_S}", errors(far, "serial", "live")),
        (f"ECHO-2's rule – live, {len(rows)} settings", errors(rows, "serial", "live")),
    ]
    return "\n".join(
        f"{what}: {100 * mean:.1f} points on average, {100 * worst:.1f} at worst" for what, (mean, worst) in pairs
    )


def rounds(cases: Sequence[Case], at_once: int) -> Iterator[Sequence[Case]]:
    """Yields the settings that run beside one another, with about as many machines each time."""
    ordered = sorted(cases, key=lambda case: case.machines)
    count = -(-len(cases) // at_once)
    yield from (ordered[first::count] for first in range(count))


def measured(cases: Sequence[Case], options: argparse.Namespace, rows: Rows) -> Mapping[Case, Row]:
    """Runs all settings, and prints each one's line as soon as it is known."""
    found = {}
    for beside in rounds(cases, options.at_once):
        start = Barrier(len(beside))
        with ThreadPoolExecutor(len(beside)) as threads:
            under_way = {threads.submit(measure, case, options.seconds, options.train, start): case for case in beside}
            for ended in as_completed(under_way):
                case = under_way[ended]
                with rows.row(str(case)):
                    found[case] = ended.result()
                    print(line(found[case]))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--settings", type=int, default=24)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--at-once", type=int, default=6, help="settings that run beside one another")
    parser.add_argument("--seconds", type=float, default=120.0, help="of each setting")
    parser.add_argument("--train", type=float, default=4.0, help="seconds of an update")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    disable_progress_bar()
    cases = [*planned(options.seed), *drawn(options.settings, options.seed)]
    print(HEAD, flush=True)
    by_case = measured(cases, options, rows := Rows())
    found = [by_case[case] for case in cases if case in by_case]
    if any(row.case.s >= LEAST_S for row in found):
        print(summary(found), flush=True)
    return conclude(found, rows.promises or targets(found, *found[:2]), as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
