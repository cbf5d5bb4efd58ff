"""Each method of data selection against oldest-first, at equal generated and at equal trained tokens, without a queue.

A trial trains the quick start's kind of model on prompts that run from trivial to hopeless, and answers unseen prompts
of the levels that can be learned. For each method the table says, as means over the seeds with the standard error:

- the score at equal generated tokens, `--tokens`, and at equal trained tokens, as many as the trial of the task that
  trained the fewest;
- the tokens generated and trained, and the updates, until `--target` is reached, as multiples of what oldest-first took
  with the same seed. A trial that does not reach the target counts with all that it used, and has the mark ≥.

A curriculum can choose only among prompts that come again: give it a set (`--prompts`) of which a trial makes several
epochs.

    python -m benchmarks.selection [--tasks sorting spelling] [--methods refill MoPPS …] [--seeds 0 1 2]
                                   [--tokens 150000] [--prompts 1536] [--target 0.5] [--json]

Finished trials stay in runs/benchmarks/selection: the same command goes on with those that are missing.
"""

import argparse
import hashlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, replace
from itertools import pairwise, product
from pathlib import Path
from statistics import fmean, stdev

import orjson
import torch
from pydantic import TypeAdapter

from benchmarks.rows import Rows
from benchmarks.selection.task import TASKS, base_model
from benchmarks.selection.trial import METHODS, Outcome, Point, Size, run
from benchmarks.verdict import conclude

WORK = Path("runs/benchmarks/selection")
BASELINE = "oldest first"
OUTCOMES = TypeAdapter(Outcome)


@dataclass(frozen=True)
class Mean:
    """A mean over the seeds, and its standard error; None for a single seed."""

    value: float
    error: float | None

    def text(self, form: str) -> str:
        return format(self.value, form) + ("" if self.error is None else f" ± {self.error:{form}}")


@dataclass(frozen=True)
class Row:
    """The figures of one method on one task.

    `reached`: in how many trials the target was reached. Ratios are to what oldest-first took with the same seed.
    """

    task: str
    method: str
    seeds: int
    reached: int
    score: Mean
    """At equal generated tokens"""
    score_by_trained: Mean
    """At equal trained tokens"""
    generated: float
    generated_ratio: Mean
    trained_ratio: Mean
    updates_ratio: Mean


def outcome_of(task: str, method: str, seed: int, size: Size) -> Outcome:
    """Runs the trial, unless it has been run with these sizes."""
    settings = orjson.dumps([task, asdict(TASKS[task]), METHODS[method].selection.model_dump(), asdict(size)])
    name = f"{task}-{method.replace(' ', '-')}-{seed}-{hashlib.sha256(settings).hexdigest()[:8]}.json"
    path = WORK / name
    if not path.exists():
        outcome = run(task, method, seed, size, base_model(task, WORK))
        path.write_bytes(orjson.dumps(asdict(outcome)))
        last = outcome.points[-1]
        print(f"{task}, {method}, seed {seed}: {last.score:.3f} in {outcome.wall_s:.0f} s", flush=True)
    return OUTCOMES.validate_json(path.read_bytes())


def reaching(points: Sequence[Point], target: float) -> tuple[Point, bool]:
    """Returns where the mean of two neighbours reaches the target, along a line between two such means, and whether
    there is such a place; if not, the last point."""
    means = [points[0], *(replace(later, score=(one.score + later.score) / 2) for one, later in pairwise(points))]
    for one, later in pairwise(means):
        if later.score >= target:
            return between(one, later, max(0.0, (target - one.score) / (later.score - one.score))), True
    return points[-1], False


def between(one: Point, later: Point, share: float) -> Point:
    """Returns the point at this share of the way."""
    generated, trained, updates = (
        round(begin + (end - begin) * share) for begin, end in zip(astuple(one)[:3], astuple(later)[:3], strict=True)
    )
    return Point(generated, trained, updates, one.score + (later.score - one.score) * share)


def score_at(points: Sequence[Point], trained: int) -> float:
    """Returns the score after so many trained tokens, along a line between two points."""
    one, later = next(pair for pair in pairwise(points) if pair[1].trained >= trained)
    return between(one, later, (trained - one.trained) / (later.trained - one.trained)).score


def rows_of(outcomes: Mapping[str, Sequence[Outcome]], target: float) -> list[Row]:
    """Returns the rows of one task: `outcomes` by method, of the same seeds in the same order.

    Raises `ValueError` for a target that the base model has reached already.
    """
    fewest = min(one.points[-1].trained for found in outcomes.values() for one in found)
    base = [reaching(one.points, target)[0] for one in outcomes[BASELINE]]
    if not all(point.generated for point in base):
        raise ValueError("the base model reaches the target without training: choose a higher --target")
    return [_row(found, base, fewest, target) for found in outcomes.values()]


def _row(outcomes: Sequence[Outcome], base: Sequence[Point], fewest: int, target: float) -> Row:
    reached = [reaching(outcome.points, target) for outcome in outcomes]
    pairs = [(point, other) for (point, _), other in zip(reached, base, strict=True)]
    return Row(
        task=outcomes[0].task,
        method=outcomes[0].method,
        seeds=len(outcomes),
        reached=sum(there for _, there in reached),
        score=_mean([outcome.points[-1].score for outcome in outcomes]),
        score_by_trained=_mean([score_at(outcome.points, fewest) for outcome in outcomes]),
        generated=fmean(point.generated for point, _ in reached),
        generated_ratio=_mean([point.generated / other.generated for point, other in pairs]),
        trained_ratio=_mean([point.trained / other.trained for point, other in pairs]),
        updates_ratio=_mean([point.updates / other.updates for point, other in pairs]),
    )


def _mean(values: Sequence[float]) -> Mean:
    return Mean(fmean(values), stdev(values) / len(values) ** 0.5 if len(values) > 1 else None)


def table(rows: Sequence[Row]) -> str:
    names = ["task", "method", "score at equal generated", "at equal trained", "generated to target", "×"]
    names += ["trained ×", "updates ×"]
    return "\n".join(f"| {' | '.join(row)} |" for row in [names, ["---"] * len(names), *map(_cells, rows)])


def _cells(row: Row) -> tuple[str, ...]:
    mark = "" if row.reached == row.seeds else "≥ "
    return (
        row.task,
        row.method,
        row.score.text(".3f"),
        row.score_by_trained.text(".3f"),
        f"{mark}{row.generated:,.0f}",
        *(one.text(".2f") for one in (row.generated_ratio, row.trained_ratio, row.updates_ratio)),
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--tokens", type=int, default=Size.tokens)
    parser.add_argument("--prompts", type=int, default=Size.prompts)
    parser.add_argument("--target", type=float, default=0.5)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    WORK.mkdir(parents=True, exist_ok=True)
    size = Size(tokens=arguments.tokens, apart=arguments.tokens // 10, prompts=arguments.prompts)
    methods = [BASELINE, *(name for name in arguments.methods if name != BASELINE)]
    lost, rows = Rows(), list[Row]()
    for task in arguments.tasks:
        found: dict[str, list[Outcome]] = {method: [] for method in methods}
        for method, seed in product(methods, arguments.seeds):
            with lost.row(f"{task}, {method}, seed {seed}"):
                found[method].append(outcome_of(task, method, seed, size))
        whole = {method: trials for method, trials in found.items() if len(trials) == len(arguments.seeds)}
        if BASELINE in whole:
            with lost.row(task):
                rows += (made := rows_of(whole, arguments.target))
                print(table(made))
    return conclude(rows, lost.promises, as_json=arguments.json)


if __name__ == "__main__":
    sys.exit(main())
