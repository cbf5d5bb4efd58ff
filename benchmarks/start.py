"""The start of a run: seconds from `echo-queue run` to the end of the first update, and what that takes of processors.

    python -m benchmarks.start [--rounds 3] [--json]

The quick start with its base model made before, so that services, learner, workers and submission begin from nothing.
With the fork server, learner and workers are forked from one process that has imported their packages; without it each
imports them by itself. Both in turns, and their medians. *processors* is the time of all processes of the run; the run
ends after that update, and its end is in it as well.
"""

import argparse
import os
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks.rows import Rows
from benchmarks.runs import ECHO_QUEUE, quick_start
from benchmarks.verdict import conclude
from echo_queue.launch.fork_server.client import can_fork
from echo_queue.reporting import metrics

BUILD = Path("build/start")
WITHOUT = (
    "-c",
    "from echo_queue.launch import supervisor; supervisor.can_fork = lambda: False;"
    "from echo_queue.cli import main; main()",
)
LEAST_SAVED = 0.9
"""The processors' time with the fork server is at most this share of the time without it."""


@dataclass(frozen=True)
class Start:
    """One start, in seconds."""

    first_update_s: float
    processors_s: float


@dataclass(frozen=True)
class Starts:
    """Starts of one kind, and their medians."""

    kind: str
    starts: Sequence[Start]
    first_update_s: float
    processors_s: float


def start(program: Sequence[str], base: Path) -> Start:
    """Runs the quick start up to its first update."""
    folder = BUILD / "run"
    shutil.rmtree(folder, ignore_errors=True)
    began, before = time.time(), _processors_s()
    quick_start("run", folder, {"MODEL__BASE": base, "LEARNER__MAX_UPDATES": 1}, program)
    first = metrics.read(folder / "metrics.jsonl")[0]
    return Start(first.time_s - began, _processors_s() - before)


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


def targets(forked: Starts, alone: Starts) -> dict[str, bool]:
    """Returns the promise and whether it is kept; a machine's other work changes seconds, and hardly these."""
    promise = f"the fork server takes at most {LEAST_SAVED} of the processors' time without it"
    return {promise: forked.processors_s <= LEAST_SAVED * alone.processors_s}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if not can_fork():
        print("roles of this machine are not forked: it has a GPU, or is not Linux", file=sys.stderr)
        return 2
    model = BUILD / "model"
    quick_start("init-model", model, {})
    base = (model / "base").absolute()
    rows, found = Rows(), dict[str, list[Start]]()
    for number in range(arguments.rounds):
        for kind, program in (("with the fork server", ECHO_QUEUE), ("without", WITHOUT)):
            with rows.row(f"{kind}, round {number}"):
                found.setdefault(kind, []).append(one := start(program, base))
                print(f"{kind}: {one.first_update_s:.1f} s, {one.processors_s:.1f} s of processors")
    if rows.lost:
        return conclude(found, rows.promises, as_json=arguments.json)
    forked, alone = (summarise(kind, starts) for kind, starts in found.items())
    print("| start | first update | processors |\n| --- | --- | --- |")
    for each in (forked, alone):
        print(f"| {each.kind} | {each.first_update_s:.1f} s | {each.processors_s:.1f} s |")
    ratios = forked.first_update_s / alone.first_update_s, forked.processors_s / alone.processors_s
    print(f"| ratio | {ratios[0]:.2f} | {ratios[1]:.2f} |")
    return conclude([forked, alone], targets(forked, alone), as_json=arguments.json)


if __name__ == "__main__":
    sys.exit(main())
