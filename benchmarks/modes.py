"""The four modes of `rollout.mode` on the quick start: the lags that they record, and how fast they train.

`sync` is the baseline: one worker and the learner take turns on all cores, as in a synchronous trainer of one machine.
`pull` is Echo's sequential mode (S = 0), `push-pull` its asynchronous one, `in-flight` takes weights between two tokens
(PipelineRL). All begin with the same base model, on the same prompts; a run counts from its `SKIP`-th update on.

    python -m benchmarks.modes [--updates 100] [--rounds 3] [--json]
"""

import argparse
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks.rows import Rows
from benchmarks.runs import quick_start
from benchmarks.verdict import conclude
from echo_queue.reporting import metrics

History = Sequence[metrics.UpdateMetrics]
WORK = Path("runs/benchmarks/modes")
SKIP = 10
BOUND = 4
SETTINGS: Mapping[str, Mapping[str, object]] = {
    "sync": {"STALENESS__S": 0, "ROLLOUT__WORKERS": 1},
    "pull": {"STALENESS__S": 0},
    "push-pull": {"STALENESS__S": BOUND},
    "in-flight": {"STALENESS__S": BOUND},
}


@dataclass(frozen=True)
class Row:
    """The figures of one mode: medians, except the largest lag and the count of groups of several versions."""

    mode: str
    max_lag: int
    mean_lag: float
    token_lag: float
    mixed_groups: int
    idle_share: float
    s_per_update: float
    reward_last: float


def measure(updates: int, rounds: int, rows: Rows) -> list[Row]:
    """Measures the modes in turns, so that other load on the machine affects all of them. Prints each run."""
    histories: dict[str, list[History]] = {mode: [] for mode in SETTINGS}
    print(HEAD, flush=True)
    for number in range(rounds):
        for mode, settings in SETTINGS.items():
            name = f"{mode}-{number}"
            fixed = {"ROLLOUT__MODE": mode, "LEARNER__MAX_UPDATES": updates, "MODEL__BASE": WORK / "base" / "base"}
            with rows.row(name):
                quick_start("run", WORK / name, {**fixed, **settings})
                history = metrics.read(WORK / name / "metrics.jsonl")
                print(line(row_of(name, [history])))
                histories[mode].append(history)
    return [row_of(mode, runs) for mode, runs in histories.items() if runs]


def row_of(mode: str, runs: Sequence[History]) -> Row:
    whole = [metrics.summarise(history) for history in runs]
    steady = [metrics.summarise(history[SKIP:]) for history in runs]
    return Row(
        mode=mode,
        max_lag=max(one.max_lag for one in whole),
        mean_lag=median(one.mean_lag for one in steady),
        token_lag=median(one.token_lag for one in steady),
        mixed_groups=sum(one.mixed_groups for one in whole),
        idle_share=median(one.idle_share for one in steady),
        s_per_update=median(one.seconds / max(one.updates, 1) for one in steady),
        reward_last=median(one.reward_last for one in steady),
    )


def targets(rows: Sequence[Row]) -> dict[str, bool]:
    by = {row.mode: row for row in rows}
    return {
        "sync and pull: every token is of the version that is trained": all(
            by[mode].max_lag == 0 and by[mode].token_lag == 0 for mode in ("sync", "pull")
        ),
        "push-pull: no lag beyond S, and each group of one version": by["push-pull"].max_lag <= BOUND
        and by["push-pull"].mixed_groups == 0,
        "in-flight: no lag beyond S, and tokens are no older than their groups": by["in-flight"].max_lag <= BOUND
        and by["in-flight"].token_lag <= by["in-flight"].mean_lag,
        "asynchronous modes train faster than sync": max(by[m].s_per_update for m in ("push-pull", "in-flight"))
        < by["sync"].s_per_update,
    }


HEAD = f"{'mode':<12} {'max lag':>7} {'mean':>6} {'tokens':>7} {'mixed':>6} {'idle':>6} {'s/update':>9} {'reward':>7}"


def line(row: Row) -> str:
    return (
        f"{row.mode:<12} {row.max_lag:>7} {row.mean_lag:>6.2f} {row.token_lag:>7.2f} {row.mixed_groups:>6} "
        f"{row.idle_share:>6.0%} {row.s_per_update:>9.3f} {row.reward_last:>7.2f}"
    )


def table(rows: Sequence[Row]) -> str:
    """Returns the modes, beside `sync` if that was measured."""
    sync_s = next((row.s_per_update for row in rows if row.mode == "sync"), None)
    body = (line(row) + (f"   {row.s_per_update / sync_s:.2f} x sync" if sync_s else "") for row in rows)
    return "\n".join((HEAD, *body))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    shutil.rmtree(WORK, ignore_errors=True)
    quick_start("init-model", WORK / "base", {})
    found = measure(arguments.updates, arguments.rounds, rows := Rows())
    print("", table(found), sep="\n")
    return conclude(found, rows.promises or targets(found), as_json=arguments.json)


if __name__ == "__main__":
    sys.exit(main())
