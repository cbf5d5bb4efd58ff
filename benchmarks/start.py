"""The start of a run: seconds from `echo-queue run` to the end of the first update, and what that takes of processors.

    python -m benchmarks.start [--rounds 3] [--json]

The quick start with its base model made before, so that services, learner, workers and submission begin from nothing.
Beside it stands what no start does without: as many processes as there are of learner and workers, which import torch
and transformers' model at the same time and end. Both in turns, and their medians. *processors* is the time of all
processes; the run ends after that update, and its end is in it as well.
"""

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

from benchmarks.rows import Rows
from benchmarks.runs import QUICK_START, quick_start
from benchmarks.verdict import conclude
from echo_queue.config.loading import load
from echo_queue.reporting import metrics

BUILD = Path("build/start")
IMPORTS = "import torch; from transformers import AutoTokenizer, Qwen3ForCausalLM"
IMPORTS_DEADLINE_S = 120.0
MOST_PROCESSORS = 3.0
"""The processors' time of a start is at most so many times that of the imports."""


@dataclass(frozen=True)
class Start:
    """One start, in seconds: until the first update, or until everything is imported."""

    first_update_s: float
    processors_s: float


@dataclass(frozen=True)
class Starts:
    """Starts of one kind, and their medians."""

    kind: str
    starts: Sequence[Start]
    first_update_s: float
    processors_s: float


def start(base: Path) -> Start:
    """Runs the quick start up to its first update."""
    folder = BUILD / "run"
    shutil.rmtree(folder, ignore_errors=True)
    began, before = time.time(), _processors_s()
    quick_start("run", folder, {"MODEL__BASE": base, "LEARNER__MAX_UPDATES": 1})
    first = metrics.read(folder / "metrics.jsonl")[0]
    return Start(first.time_s - began, _processors_s() - before)


def imports(processes: int) -> Start:
    """Imports the packages in so many processes at once."""
    began, before = time.time(), _processors_s()
    started = [subprocess.Popen([sys.executable, "-c", IMPORTS]) for _ in range(processes)]
    if any([one.wait(IMPORTS_DEADLINE_S) for one in started]):
        raise SystemExit("torch and transformers cannot be imported")
    return Start(time.time() - began, _processors_s() - before)


def _processors_s() -> float:
    """Returns the time that processes of this one took which have ended."""
    times = os.times()
    return times.children_user + times.children_system


def summarise(kind: str, starts: Sequence[Start]) -> Starts:
    return Starts(
        kind,
        starts,
        median(one.first_update_s for one in starts),
        median(one.processors_s for one in starts),
    )


def targets(run: Starts, imported: Starts) -> dict[str, bool]:
    """Returns the promise and whether it is kept; a machine's other work changes seconds, and hardly these."""
    promise = f"a start takes at most {MOST_PROCESSORS} times the processors' time of its packages' imports"
    return {promise: run.processors_s <= MOST_PROCESSORS * imported.processors_s}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    model = BUILD / "model"
    quick_start("init-model", model, {})
    base = (model / "base").absolute()
    processes = load(QUICK_START).rollout.workers + 1
    kinds = {"run": partial(start, base), f"imports in {processes} processes": partial(imports, processes)}
    rows, found = Rows(), dict[str, list[Start]]()
    for number in range(arguments.rounds):
        for kind, begin in kinds.items():
            with rows.row(f"{kind}, round {number}"):
                found.setdefault(kind, []).append(one := begin())
                print(f"{kind}: {one.first_update_s:.1f} s, {one.processors_s:.1f} s of processors")
    if rows.lost:
        return conclude(found, rows.promises, as_json=arguments.json)
    run, imported = (summarise(kind, starts) for kind, starts in found.items())
    print("| start | first update | processors |\n| --- | --- | --- |")
    for each in (run, imported):
        print(f"| {each.kind} | {each.first_update_s:.1f} s | {each.processors_s:.1f} s |")
    ratios = run.first_update_s / imported.first_update_s, run.processors_s / imported.processors_s
    print(f"| ratio | {ratios[0]:.2f} | {ratios[1]:.2f} |")
    return conclude([run, imported], targets(run, imported), as_json=arguments.json)


if __name__ == "__main__":
    sys.exit(main())
