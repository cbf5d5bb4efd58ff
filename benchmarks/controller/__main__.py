"""Disturbs a live fleet, with a controller that acts and with one that is paused.

    python -m benchmarks.controller [--kind "doubled demand"] [--seed 1] [--json]

Without `--kind` all disturbances run, one after another; each takes about six minutes. `left alone` is the end of the
time for which the controller was paused after the disturbance. Costs are in USD per hour, those of an update with the
learner's.
"""

import argparse
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from transformers.utils.logging import disable_progress_bar

from benchmarks.controller.disturbances import KINDS
from benchmarks.controller.offers import LEARNER_USD, TRAIN_S, optimum_usd
from benchmarks.controller.trial import Trial, begun
from benchmarks.controller.watch import Watch
from benchmarks.rows import Rows
from benchmarks.verdict import conclude

SETTLED_S, ALONE_S, ACTS_S = 55.0, 55.0, 170.0
JUDGED_S, LAST_UPDATE_S = 45.0, 2 * TRAIN_S
"""The last seconds of a time, by which it is judged, and the time in which its last update ends."""
BUSY, COST, REVERSALS = 0.95, 1.05, 1
HOUR_S = 3_600.0
HEAD = (
    f"{'':<24}{'left alone':>14}{'with controller':>19}\n"
    f"{'':<24}{'busy':>6}{'$/upd.':>8}{'busy':>11}{'$/upd.':>8} ratio  cost of optimum reversals  caps  late"
)


@dataclass(frozen=True)
class Period:
    """The end of a time: the share for which the learner trained, and what pools and an update cost; infinite without
    any update."""

    busy: float
    pools_usd_per_hour: float
    usd_per_update: float


@dataclass(frozen=True)
class Row:
    """The figures of a disturbance. `optimum_usd_per_hour` is of the cheapest set that the plan finds after it.

    `caps_exceeded`: looks at the machines, of `looks`, that found a cap exceeded. `orders`: of the controller, with the
    repetitions of each turn. `late_share`: the share of their time that the engines of a pool lost because this
    machine's processors were busy, where it was largest.
    """

    kind: str
    before: Period
    alone: Period
    controlled: Period
    optimum_usd_per_hour: float
    machines: Mapping[str, int]
    reversals: int
    looks: int
    caps_exceeded: int
    orders: int
    late_share: float
    identity: bool

    @property
    def cost(self) -> float:
        return self.controlled.pools_usd_per_hour / self.optimum_usd_per_hour

    @property
    def saving(self) -> float:
        """The price of an update, as a multiple of its price with the fleet left alone."""
        return self.controlled.usd_per_update / self.alone.usd_per_update


def measure(kind: str, seed: int) -> Row:
    """Plays one disturbance."""
    with begun(seed) as (trial, watch):
        settled_s = trial.go_on(SETTLED_S)
        trial.pause(paused=True)
        KINDS[kind](trial)
        left_s = trial.go_on(ALONE_S)
        trial.pause(paused=False)
        acted_s = trial.go_on(ACTS_S)
        trial.go_on(LAST_UPDATE_S)
        usd = {pool: price for pool, price in trial.market.usd.items() if pool not in trial.market.gone}
        return Row(
            kind,
            before=_period(trial, watch, settled_s, TRAIN_S),
            alone=_period(trial, watch, left_s, trial.learner.pace.train_s),
            controlled=_period(trial, watch, acted_s, trial.learner.pace.train_s),
            optimum_usd_per_hour=optimum_usd(trial.learner.pace.train_s, usd),
            machines=watch.seen[-1].machines,
            reversals=watch.reversals(left_s),
            looks=len(watch.seen),
            caps_exceeded=sum(not one.within_caps for one in watch.seen),
            orders=sum(len(turn.decision.orders) for at_s, turn in watch.turns if at_s >= left_s),
            late_share=round(trial.late_share, 4),
            identity=trial.run.harness.queue.audit().ok,
        )


def _period(trial: Trial, watch: Watch, until_s: float, train_s: float) -> Period:
    """Returns the figures of the time before, in which an update took `train_s`."""
    from_s = until_s - JUDGED_S
    busy, usd = trial.busy(from_s, until_s), watch.usd_per_hour(from_s, until_s)
    per_update = (LEARNER_USD + usd) * train_s / busy / HOUR_S if busy else math.inf
    return Period(round(busy, 4), round(usd, 3), round(per_update, 5))


def targets(rows: Sequence[Row]) -> dict[str, bool]:
    promises: dict[str, bool] = {}
    for row in rows:
        promises |= {
            f"{row.kind}: the learner is {BUSY:.0%} busy again": row.controlled.busy >= BUSY,
            f"{row.kind}: for {COST:g} of the optimum's cost": row.cost <= COST,
            f"{row.kind}: after {REVERSALS} reversal at most": row.reversals <= REVERSALS,
            f"{row.kind}: no cap was exceeded at any instant": row.caps_exceeded == 0,
            f"{row.kind}: an update costs less than with the fleet left alone": row.saving < 1,
            f"{row.kind}: the identity holds": row.identity,
        }
    return promises


def line(row: Row) -> str:
    return (
        f"{row.kind:<24}{row.alone.busy:>6.1%}{row.alone.usd_per_update:>8.4f}{row.controlled.busy:>11.1%}"
        f"{row.controlled.usd_per_update:>8.4f}{row.saving:>6.2f}{row.cost:>17.3f}{row.reversals:>10}"
        f"{row.caps_exceeded:>6}{row.late_share:>6.1%}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", choices=KINDS, action="append", help="only this disturbance; may be repeated")
    parser.add_argument("--seed", type=int, default=1, help="of the lengths of the groups")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    disable_progress_bar()
    print(HEAD, flush=True)
    rows, found = Rows(), list[Row]()
    for kind in options.kind or KINDS:
        with rows.row(kind):
            found.append(measure(kind, options.seed))
            print(line(found[-1]))
    return conclude(found, rows.promises | targets(found), as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
