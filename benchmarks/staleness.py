"""The effect of the bound S and of pacing on the age of the data, in the real pipeline on this machine (ECHO-2).

For each S the quick start runs twice, with pacing and without, from the same base model, and reports: the largest
and mean lag of anything trained, the learner's idle share, and the share of groups sent back. A run counts from its
`SKIP`-th update on, so that start-up and the first fill of the window are left out of the idle share; the largest
lag counts every update.

    python -m benchmarks.staleness [--updates 60] [--bounds 0,1,2,4,8] [--plot docs/staleness.png] [--json]
"""

import argparse
import shutil
import sys
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import matplotlib

from benchmarks.rows import Rows
from benchmarks.runs import quick_start
from benchmarks.verdict import conclude
from echo_queue.reporting import metrics

matplotlib.use("Agg")
from matplotlib import pyplot as plt

WORK = Path("runs/benchmarks/staleness")
SKIP = 10


@dataclass(frozen=True)
class Row:
    """The figures of one run. Shares are of the learner's time, and of the groups that reached it."""

    s: int
    pace: bool
    max_lag: int
    mean_lag: float
    idle_share: float
    sent_back_share: float
    reward_last: float


def measure(s: int, pace: bool, updates: int) -> Row:
    name = f"s{s}-{'pace' if pace else 'fill'}"
    settings = {
        "STALENESS__S": s,
        "STALENESS__PACE": str(pace).lower(),
        "LEARNER__MAX_UPDATES": updates,
        "MODEL__BASE": WORK / "base" / "base",
    }
    quick_start("run", WORK / name, settings)
    history = metrics.read(WORK / name / "metrics.jsonl")
    steady = metrics.summarise(history[SKIP:])
    return Row(
        s=s,
        pace=pace,
        max_lag=metrics.summarise(history).max_lag,
        mean_lag=steady.mean_lag,
        idle_share=steady.idle_share,
        sent_back_share=steady.sent_back_share,
        reward_last=steady.reward_last,
    )


def targets(rows: list[Row]) -> dict[str, bool]:
    """Returns the promises that these runs can show, and whether they are kept."""
    by = {(row.s, row.pace): row for row in rows}
    held = {"no lag beyond S": all(row.max_lag <= row.s for row in rows)}
    if (4, True) in by:
        held["S = 4: less than 2 % sent back"] = by[4, True].sent_back_share < 0.02
    if (8, True) in by and (8, False) in by:
        paced, filled = by[8, True], by[8, False]
        held["S = 8: pacing halves the mean lag"] = paced.mean_lag <= filled.mean_lag / 2
        held["S = 8: pacing costs at most 3 points of idle time"] = paced.idle_share - filled.idle_share <= 0.03
    return held


def plot(rows: list[Row], path: Path) -> None:
    figure, (lag, idle) = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    for pace, label, marker in ((True, "paced", "o"), (False, "window filled", "s")):
        line = [row for row in rows if row.pace == pace]
        lag.plot([row.s for row in line], [row.mean_lag for row in line], marker=marker, label=label)
        idle.plot([row.s for row in line], [100 * row.idle_share for row in line], marker=marker, label=label)
    bounds = sorted({row.s for row in rows})
    lag.plot(bounds, bounds, color="grey", linestyle=":", label="the bound")
    lag.set(title="Mean lag of what was trained", xlabel="S (updates)", ylabel="updates", xticks=bounds)
    idle.set(title="Learner idle", xlabel="S (updates)", ylabel="% of its time", xticks=bounds, ylim=(0, None))
    lag.legend(frameon=False)
    figure.savefig(path, dpi=150)


HEAD = f"{'S':>3}  {'':<7} {'max lag':>7} {'mean lag':>9} {'idle':>7} {'sent back':>10} {'reward':>7}"


def line(row: Row) -> str:
    return (
        f"{row.s:>3}  {'paced' if row.pace else 'filled':<7} {row.max_lag:>7} {row.mean_lag:>9.2f}"
        f" {row.idle_share:>7.1%} {row.sent_back_share:>10.2%} {row.reward_last:>7.2f}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=60)
    parser.add_argument("--bounds", default="0,1,2,4,8")
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    shutil.rmtree(WORK, ignore_errors=True)
    quick_start("init-model", WORK / "base", {})
    rows, found = Rows(), list[Row]()
    print(HEAD, flush=True)
    for s, pace in product(map(int, arguments.bounds.split(",")), (True, False)):
        with rows.row(f"S = {s}, {'paced' if pace else 'filled'}"):
            found.append(measure(s, pace, arguments.updates))
            print(line(found[-1]))
    if arguments.plot:
        with rows.row("the plot"):
            plot(found, arguments.plot)
    return conclude(found, rows.promises | targets(found), as_json=arguments.json)


if __name__ == "__main__":
    sys.exit(main())
