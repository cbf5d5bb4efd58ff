"""Each method of data selection against oldest-first, at equal generated and at equal trained tokens, without a queue.

A trial trains the quick start's kind of model on prompts that run from trivial to hopeless, and answers unseen prompts
of the levels that can be learned. For each method the table says, as means over the seeds with the standard error: the
score at equal generated tokens; the tokens generated and trained, and the updates, until `--target` is reached; and
their ratios to oldest-first's. A trial that does not reach the target counts with all that it used, and has the mark ≥.

    python -m benchmarks.selection [--tasks sorting spelling] [--methods refill MoPPS …] [--seeds 0 1 2]
                                   [--tokens 150000] [--target 0.5] [--json]

Finished trials stay in runs/benchmarks/selection: the same command goes on with those that are missing.
"""

import argparse
import hashlib
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import fmean, stdev

import orjson
import torch
from pydantic import TypeAdapter

from benchmarks.selection.task import TASKS, base_model
from benchmarks.selection.trial import METHODS, Outcome, Point, Size, run
from benchmarks.verdict import conclude

WORK = Path("runs/benchmarks/selection")
BASELINE = "oldest first"
OUTCOMES = TypeAdapter(Outcome)


@dataclass(frozen=True)
class Row:
    """The figures of one method on one task: means over the seeds, and standard errors (None for a single seed).

    `reached`: in how many trials the target was reached. Ratios are to what oldest-first took to reach it.
    """

    task: str
    method: str
    seeds: int
    reached: int
    score: float
    score_error: float | None
    generated: float
    generated_error: float | None
    trained: float
    updates: float
    generated_ratio: float = 1.0
    trained_ratio: float = 1.0
    updates_ratio: float = 1.0


def outcome_of(task: str, method: str, seed: int, size: Size) -> Outcome:
    """Runs the trial, unless it has been run with these sizes."""
    settings = orjson.dumps([task, asdict(TASKS[task]), METHODS[method].selection.model_dump(), asdict(size)])
    name = f"{task}-{method.replace(' ', '-')}-{seed}-{hashlib.sha256(settings).hexdigest()[:8]}.json"
    path = WORK / name
    if not path.exists():
        outcome = run(task, method, seed, size, base_model(task, WORK))
        path.write_bytes(orjson.dumps(asdict(outcome)))
        last = outcome.points[-1]
        print(f"{task}, {method}, seed {seed}: {last.score:.3f} in {outcome.wall_s:.0f} s", file=sys.stderr, flush=True)
    return OUTCOMES.validate_json(path.read_bytes())


def reaching(points: Sequence[Point], target: float) -> tuple[Point, bool]:
    """Returns the first point from which the mean of two neighbours reaches the target, and whether there is one."""
    found = next((later for one, later in pairwise(points) if (one.score + later.score) / 2 >= target), None)
    return (found, True) if found else (points[-1], False)


def row_of(outcomes: Sequence[Outcome], target: float) -> Row:
    reached = [reaching(outcome.points, target) for outcome in outcomes]
    scores, tokens = [outcome.points[-1].score for outcome in outcomes], [point.generated for point, _ in reached]
    return Row(
        task=outcomes[0].task,
        method=outcomes[0].method,
        seeds=len(outcomes),
        reached=sum(there for _, there in reached),
        score=fmean(scores),
        score_error=_error(scores),
        generated=fmean(tokens),
        generated_error=_error(tokens),
        trained=fmean(point.trained for point, _ in reached),
        updates=fmean(point.updates for point, _ in reached),
    )


def compared(rows: Sequence[Row]) -> list[Row]:
    """Sets the ratios of each task's rows to its baseline."""
    base = {row.task: row for row in rows if row.method == BASELINE}
    return [
        replace(
            row,
            generated_ratio=row.generated / base[row.task].generated,
            trained_ratio=row.trained / base[row.task].trained,
            updates_ratio=row.updates / base[row.task].updates,
        )
        for row in rows
    ]


def _error(values: Sequence[float]) -> float | None:
    return stdev(values) / len(values) ** 0.5 if len(values) > 1 else None


def table(rows: Sequence[Row]) -> str:
    names = f"{'generated':>11} {'×':>5} {'trained':>9} {'×':>5} {'updates':>8} {'×':>5}"
    return "\n".join([f"{'task':<9} {'method':<15} {'score at the end':>17} {names}", *map(_line, rows)])


def _line(row: Row) -> str:
    error = "" if row.score_error is None else f" ± {row.score_error:.3f}"
    mark = "" if row.reached == row.seeds else "≥"
    return (
        f"{row.task:<9} {row.method:<15} {f'{row.score:.3f}{error}':>17} {f'{mark}{row.generated:,.0f}':>11}"
        f" {row.generated_ratio:>5.2f} {row.trained:>9,.0f} {row.trained_ratio:>5.2f} {row.updates:>8,.0f}"
        f" {row.updates_ratio:>5.2f}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--tokens", type=int, default=Size.tokens)
    parser.add_argument("--target", type=float, default=0.5)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    WORK.mkdir(parents=True, exist_ok=True)
    size = Size(tokens=arguments.tokens, apart=arguments.tokens // 10)
    methods = [BASELINE, *(name for name in arguments.methods if name != BASELINE)]
    rows = compared(
        [
            row_of([outcome_of(task, method, seed, size) for seed in arguments.seeds], arguments.target)
            for task in arguments.tasks
            for method in methods
        ]
    )
    print(table(rows))
    return conclude(rows, {}, as_json=arguments.json)


if __name__ == "__main__":
    sys.exit(main())
